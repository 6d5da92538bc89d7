//! Resident memory of this process and of the consumer's on the way: does it grow with what went through?

use serde_json::{Value, json};

/// What a process had, in MiB.
#[derive(Debug, Clone, Copy, Default)]
struct Resident {
    half: f64,
    end: f64,
    peak: f64,
}

/// Looks at both processes. Linux only: elsewhere all are 0.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Memory {
    run: Resident,
    consumer: Resident,
}

impl Memory {
    /// A look after `taken` of `all` effects; `consumer` is its process id.
    pub(crate) fn look(&mut self, consumer: Option<u32>, taken: u64, all: u64) {
        let seen = [(&mut self.run, Some(std::process::id())), (&mut self.consumer, consumer)];
        for (resident, pid) in seen {
            let Some(now) = pid.and_then(resident_mib) else { continue };
            if taken * 2 <= all {
                resident.half = now;
            }
            resident.end = now;
            resident.peak = resident.peak.max(now);
        }
    }

    pub(crate) fn json(&self) -> Value {
        let of = |r: &Resident| json!({"half": r.half, "end": r.end, "peak": r.peak});
        json!({"run": of(&self.run), "consumer": of(&self.consumer)})
    }
}

fn resident_mib(pid: u32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some((kib / 102.4).round() / 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_half_way_is_kept() {
        let mut memory = Memory::default();
        memory.look(None, 4, 10);
        let half = memory.run.half;
        memory.look(None, 9, 10);
        assert!(half > 0.0 && memory.run.end > 0.0 && memory.run.half == half && memory.consumer.peak == 0.0, "{memory:?}");
    }
}
