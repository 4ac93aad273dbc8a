//! Reports when [`quell_host::attach::effect_watch`] finds that a mode stopped or started being in effect.

use quell_host::attach::Attachment;
use quell_host::attach::effect::ModeVerdict;
use quell_host::attach::effect_watch::{EffectChange, EffectWatch};

/// Judges the queues of an attachment, until polls cannot be counted.
#[derive(Default)]
pub(crate) struct Effects {
    watch: EffectWatch,
    blind: bool,
}

impl Effects {
    /// Returns a line for each change since the last call.
    pub(crate) fn look(&mut self, attachment: &Attachment) -> Vec<String> {
        if self.blind {
            return Vec::new();
        }
        match self.watch.look(&attachment.request(), attachment.queues()) {
            Ok(changes) => changes.iter().map(in_words).collect(),
            Err(error) => {
                self.blind = true;
                vec![format!("whether the mode is in effect is not watched: {error}")]
            }
        }
    }
}

fn in_words(change: &EffectChange) -> String {
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
