//! Reports queues that [`quell_host::attach::stall`] found stalled and freed.

use quell_host::attach::Attachment;
use quell_host::attach::stall::{StallWatch, Stalled};
use quell_linux::proc::ProcRoot;

/// Frees stalled queues. Without the privilege to count polls it does nothing, and reports this once.
#[derive(Default)]
pub(crate) struct Stalls {
    watch: StallWatch,
    blind: bool,
}

impl Stalls {
    /// Frees stalled queues and returns a line for each.
    pub(crate) fn look(&mut self, attachment: &Attachment) -> Vec<String> {
        if self.blind {
            return Vec::new();
        }
        let programs = attachment.targets().pids();
        let watched = self.watch.watch(attachment.queues());
        match watched.and_then(|()| self.watch.look(&ProcRoot::default(), &programs)) {
            Ok(stalled) => stalled.iter().map(in_words).collect(),
            Err(error) => {
                self.blind = true;
                vec![format!("not watching for stalled queues: {error}")]
            }
        }
    }
}

fn in_words(stalled: &Stalled) -> String {
    let Stalled { napi, unpolled, packets, .. } = stalled;
    format!(
        "freed the stalled queue of NAPI {napi}, where {packets} packet(s) waited: nobody had polled it for {} ms \
         although the program ran; `quell doctor` shows the cause",
        unpolled.as_millis()
    )
}
