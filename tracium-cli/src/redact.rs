//! Keeping secrets out of everything that is printed.

use std::borrow::Cow;
use std::sync::{PoisonError, RwLock};

/// Passwords that this process has read, as they are and as they stand in URLs.
static SECRETS: RwLock<Vec<String>> = RwLock::new(Vec::new());

pub(crate) const MASK: &str = "***";

/// Remembers a secret: it is masked in all that is printed from now on. One or two characters cannot be masked without
/// making every text unreadable.
pub(crate) fn remember(secret: &str) {
    if secret.len() > 2 {
        let mut secrets = SECRETS.write().unwrap_or_else(PoisonError::into_inner);
        if !secrets.iter().any(|known| known == secret) {
            secrets.push(secret.to_owned());
        }
    }
}

/// Remembers the password of a URL, encoded and decoded.
pub(crate) fn remember_url(url: &str) {
    let in_authority = password_span(url, 0).map(|(from, to)| &url[from..to]);
    let in_query = url.split(['?', '&']).find_map(|part| part.strip_prefix("password="));
    for password in [in_authority, in_query].into_iter().flatten() {
        remember(password);
        remember(&percent_encoding::percent_decode_str(password).decode_utf8_lossy());
    }
}

/// The text without the secrets that were remembered and without passwords in URLs.
pub(crate) fn redact(text: &str) -> Cow<'_, str> {
    let mut text = Cow::Borrowed(text);
    for secret in SECRETS.read().unwrap_or_else(PoisonError::into_inner).iter() {
        if text.contains(secret.as_str()) {
            text = Cow::Owned(text.replace(secret.as_str(), MASK));
        }
    }
    let mut from = 0;
    while let Some((start, end)) = password_span(&text, from) {
        text.to_mut().replace_range(start..end, MASK);
        from = start + MASK.len();
    }
    text
}

/// Where the password of the next `scheme://user:password@` is, from an offset on.
fn password_span(text: &str, from: usize) -> Option<(usize, usize)> {
    let mut search = from;
    loop {
        let authority = text.get(search..)?.find("://").map(|at| search + at + 3)?;
        let word = text[authority..].find(|c: char| c.is_whitespace() || c == '"').map_or(text.len(), |n| authority + n);
        let slash = text[authority..word].find('/').map_or(word, |n| authority + n);
        // A password may hold an unencoded @ or /, so the last @ of the word ends it; an @ behind host:port/ ends nothing.
        if let Some(at) = text[authority..word].rfind('@').map(|n| authority + n)
            && let Some(colon) = text[authority..at].find(':').map(|n| authority + n)
            && (at < slash || !text[colon + 1..slash.max(colon + 1)].bytes().all(|b| b.is_ascii_digit()))
        {
            return Some((colon + 1, at));
        }
        search = authority;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        assert_eq!(redact(text), expected);
    }

    #[test]
    fn a_password_in_any_url_is_masked() {
        check("postgres://ada:geheim@h:5432/d and http://x:y@z", "postgres://ada:***@h:5432/d and http://x:***@z");
        check("postgres://ada@h/d, http://h:80/a@b", "postgres://ada@h/d, http://h:80/a@b");
        check("no url: a@b", "no url: a@b");
        check("postgres://ada:ge@he/im@h/d", "postgres://ada:***@h/d");
    }

    #[test]
    fn a_remembered_password_is_masked_wherever_it_turns_up() {
        remember_url("postgres://u:s%40uper-s3cret@h/d");
        remember_url("postgres://u@h/d?sslmode=disable&password=quelle-42");
        check("password s@uper-s3cret or s%40uper-s3cret or quelle-42", "password *** or *** or ***");
    }
}
