//! Stores the last bytes of a child's output, for error messages. A thread reads all output, so that a full pipe never
//! blocks the child.

use std::collections::VecDeque;
use std::io::Read;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Time limit for the end of a dead child's output. A descendant of the child may hold the output open.
const SETTLE_BOUND: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct OutputTail {
    kept: Arc<Mutex<VecDeque<u8>>>,
    ended: Receiver<()>,
}

impl OutputTail {
    /// Starts a thread that reads the output to its end and stores the last `limit` bytes.
    pub(super) fn follow(mut source: impl Read + Send + 'static, limit: usize) -> Self {
        let kept = Arc::new(Mutex::new(VecDeque::new()));
        let (end, ended) = channel::<()>();
        let tail = Self { kept: Arc::clone(&kept), ended };
        thread::spawn(move || {
            // The end of the thread drops this value, and `settle` waits for that.
            let _end = end;
            let mut chunk = [0; 4096];
            while let Ok(count @ 1..) = source.read(&mut chunk) {
                keep_last(&mut lock(&kept), &chunk[..count], limit);
            }
        });
        tail
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        lock(&self.kept).iter().copied().collect()
    }

    /// Waits for the end of the output, but not longer than the time limit.
    pub(super) fn settle(&mut self) {
        let _ = self.ended.recv_timeout(SETTLE_BOUND);
    }
}

fn lock(kept: &Mutex<VecDeque<u8>>) -> MutexGuard<'_, VecDeque<u8>> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

fn keep_last(kept: &mut VecDeque<u8>, new: &[u8], limit: usize) {
    kept.extend(new);
    let excess = kept.len().saturating_sub(limit);
    kept.drain(..excess);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_bytes_are_stored() {
        let written: Vec<u8> = (0..20_000u32).map(|n| n as u8).collect();
        let mut tail = OutputTail::follow(std::io::Cursor::new(written.clone()), 100);
        tail.settle();
        assert_eq!(tail.bytes(), written[written.len() - 100..]);
    }
}
