//! Where a view's documents live.

use tracium_core::SqlIdentifier;

/// Schema and name of a view. Both are valid identifiers, and quoted all the same: `order` is one too.
#[derive(Debug, Clone)]
pub(crate) struct PostgresViewConfig {
    /// `None`: `public`.
    pub(crate) schema: Option<SqlIdentifier>,
    pub(crate) name: SqlIdentifier,
}

impl PostgresViewConfig {
    /// The schema's name.
    pub(crate) fn schema(&self) -> &str {
        self.schema.as_ref().map_or("public", SqlIdentifier::as_str)
    }

    /// The epoch's table.
    pub(crate) fn table(&self, epoch: i32) -> String {
        format!("\"{}\".\"{}_e{epoch}\"", self.schema(), self.name)
    }

    /// The name that readers use, the same for every epoch.
    pub(crate) fn stable_name(&self) -> String {
        format!("\"{}\".\"{}\"", self.schema(), self.name)
    }
}
