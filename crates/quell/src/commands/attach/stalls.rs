//! The watch over stalled queues for whoever stays beside a program: what it freed, in words. What a stall is and how it is
//! ended is [`quell_host::attach::stall`]'s.

use quell_host::attach::Attachment;
use quell_host::attach::stall::{StallWatch, Stalled};
use quell_linux::proc::ProcRoot;

/// Without the right to count polls there is no watch, which is said once.
#[derive(Default)]
pub(crate) struct Stalls {
    watch: StallWatch,
    blind: bool,
}

impl Stalls {
    /// Looks once and frees what is stalled; says what that was.
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
                vec![format!("stalled queues are not watched for: {error}")]
            }
        }
    }
}

fn in_words(stalled: &Stalled) -> String {
    let Stalled { napi, unpolled, packets, .. } = stalled;
    format!(
        "NAPI {napi} was stalled: {packets} packet(s) lay there, and nobody had polled it for {} ms though the program ran; \
         freed. `quell doctor` says what keeps it so",
        unpolled.as_millis()
    )
}
