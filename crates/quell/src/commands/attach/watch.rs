//! Reports the events that [`quell_host::attach::watch`] observes on the queues of a followed attachment.

use quell_host::attach::Attachment;
use quell_host::attach::effect::ModeVerdict;
use quell_host::attach::stall::Stalled;
use quell_host::attach::watch::{AttachmentWatch, EffectChange};

/// Watches the queues of an attachment. Without the privilege to count polls it does nothing, and reports this once.
#[derive(Default)]
pub(crate) struct QueueWatch {
    watch: AttachmentWatch,
    blind: bool,
}

impl QueueWatch {
    /// Frees stalled queues. Returns a line for each event since the last call.
    pub(crate) fn look(&mut self, attachment: &Attachment) -> Vec<String> {
        if self.blind {
            return Vec::new();
        }
        match self.watch.look(attachment) {
            Ok(events) => events.stalled.iter().map(freed).chain(events.effects.iter().map(effect)).collect(),
            Err(error) => {
                self.blind = true;
                vec![format!("not watching for stalled queues, nor whether the mode is in effect: {error}")]
            }
        }
    }
}

fn freed(stalled: &Stalled) -> String {
    let Stalled { napi, unpolled, packets, .. } = stalled;
    format!(
        "freed the stalled queue of NAPI {napi}, where {packets} packet(s) waited: nobody had polled it for {} ms \
         although the program ran; `quell doctor` shows the cause",
        unpolled.as_millis()
    )
}

fn effect(change: &EffectChange) -> String {
    let rx: Vec<String> = change.rx_queues.iter().map(ToString::to_string).collect();
    let queue = match rx.is_empty() {
        true => format!("{} NAPI {}", change.device, change.napi),
        false => format!("{} rx {}", change.device, rx.join(",")),
    };
    match &change.verdict {
        ModeVerdict::InEffect(why) => format!("{queue}: in effect again: {why}"),
        ModeVerdict::NotInEffect(why) | ModeVerdict::CannotTell(why) => format!("{queue}: not in effect: {why}"),
    }
}
