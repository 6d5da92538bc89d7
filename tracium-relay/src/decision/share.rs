//! Sharing shards among relays.

/// A lease as the coordinator sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeaseView {
    pub(crate) shard: i16,
    pub(crate) owner: Option<String>,
    pub(crate) expired: bool,
}

impl LeaseView {
    fn free(&self) -> bool {
        self.owner.is_none() || self.expired
    }
}

/// How many shards this relay should hold: an equal share, the remainder going to the first members by name. All members
/// compute the same from the same list, so the shares add up to all shards and differ by one at most.
pub(crate) fn quota(members: &[String], me: &str, shards: usize) -> usize {
    let count = members.len().max(1);
    let rank = members.iter().filter(|member| member.as_str() < me).count();
    shards / count + usize::from(rank < shards % count)
}

/// What to give back: only what is above the quota, the highest shards first, so that the others stay where they are.
pub(crate) fn shards_to_release(mut mine: Vec<i16>, quota: usize) -> Vec<i16> {
    mine.sort_unstable();
    mine.split_off(quota.min(mine.len()))
}

/// What to try to take: free or expired leases, up to the quota. A dead relay's lease is taken whatever the quota says
/// once no live member is below its own: that cannot be known here, so the quota alone decides, and the dead relay's
/// member row expires with its leases.
pub(crate) fn shards_to_take(leases: &[LeaseView], held: usize, quota: usize) -> Vec<i16> {
    leases.iter().filter(|lease| lease.free()).map(|lease| lease.shard).take(quota.saturating_sub(held)).collect()
}
