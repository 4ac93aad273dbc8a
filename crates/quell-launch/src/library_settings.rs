//! Translates a delivery mode to settings of the preload library, and to the program's environment.

use std::ffi::{OsStr, OsString};
use std::num::NonZeroU32;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

use quell_mode::{DeliveryMode, EpollParams, ProgramWait};

use crate::library::FILE_NAME;
use crate::preload_settings::{ENVIRONMENT_VARIABLE, EventsMax, PreloadSettings, SpinMicros, WaitChange, WaitMillis};

const LD_PRELOAD: &str = "LD_PRELOAD";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{mode}: {what}")]
pub struct BeyondTheLibrary {
    mode: DeliveryMode,
    what: &'static str,
}

/// Library settings for a mode, with an optional maximum number of events per wait. They equal the default if the mode
/// requires no changes in the program.
pub fn library_settings(
    mode: &DeliveryMode,
    max_events: Option<NonZeroU32>,
) -> Result<PreloadSettings, BeyondTheLibrary> {
    let beyond = |what| move || BeyondTheLibrary { mode: *mode, what };
    let epoll = mode.epoll().filter(|epoll| *epoll != EpollParams::default());
    let suspends = mode.napi().irq_suspend_timeout_ns > 0 && epoll.is_some_and(|epoll| epoll.prefer_busy_poll);
    let events = |events: NonZeroU32| {
        EventsMax::new(events.get()).ok_or_else(beyond("the number of events per wait is too large"))
    };
    Ok(PreloadSettings {
        epoll,
        // Use the options that are set on the sockets of a running program, and also a budget. A budget that is set
        // from outside cannot be restored.
        sockets: mode.socket_busy_poll(),
        timed_zero_waits: suspends,
        wait: wait(mode.program_wait()).ok_or_else(beyond("the length of its waits is out of range"))?,
        events_max: max_events.map(events).transpose()?,
    })
}

fn wait(wait: ProgramWait) -> Option<WaitChange> {
    match wait {
        ProgramWait::AsWritten => Some(WaitChange::AsWritten),
        ProgramWait::AtMost(longest) => {
            u32::try_from(longest.as_millis()).ok().and_then(WaitMillis::new).map(WaitChange::AtMost)
        }
        ProgramWait::SpinBeforeSleep(spin) => {
            u32::try_from(spin.as_micros()).ok().and_then(SpinMicros::new).map(WaitChange::SpinBeforeSleep)
        }
        // Reject unknown modes instead of applying them in part.
        _ => None,
    }
}

/// Additions to the program's environment: the library, before other preloaded libraries, and its settings. If an
/// earlier launch started this program, its preload library is removed.
#[must_use]
pub fn environment(
    library: &Path,
    settings: &PreloadSettings,
    ld_preload: Option<&OsStr>,
) -> [(OsString, OsString); 2] {
    let others = ld_preload.unwrap_or_default().as_bytes().split(|byte| matches!(byte, b' ' | b':'));
    let is_own =
        |path: &[u8]| path.rsplit(|&byte| byte == b'/').next().is_some_and(|n| n.starts_with(FILE_NAME.as_bytes()));
    let others = others.filter(|path| !path.is_empty() && !is_own(path));
    let all: Vec<&[u8]> = std::iter::once(library.as_os_str().as_bytes()).chain(others).collect();
    [
        (LD_PRELOAD.into(), OsString::from_vec(all.join(&b':'))),
        (ENVIRONMENT_VARIABLE.into(), settings.to_string().into()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(mode: &str, max_events: u32) -> String {
        library_settings(&mode.parse().unwrap(), NonZeroU32::new(max_events)).unwrap().to_string()
    }

    #[test]
    fn modes_that_only_set_queues_do_not_change_the_program() {
        for mode in ["base", "defer200", "threaded"] {
            assert_eq!(text(mode, 0), "1", "{mode}");
        }
    }

    #[test]
    fn each_mode_has_the_library_settings_of_its_name() {
        for (mode, expected) in [
            ("suspend20", "1,epoll=0/64/1,zero-waits=timed"),
            ("napibusy", "1,epoll=64/64/1"),
            ("fullbusy", "1,epoll=1000/64/1,wait-at-most-ms=1"),
            ("eventspin50", "1,spin-usecs=50"),
            ("sockpoll50", "1,sockets=50/64/1"),
            ("suspend20,busy-poll-budget=8", "1,epoll=0/8/1,zero-waits=timed"),
        ] {
            assert_eq!(text(mode, 0), expected, "{mode}");
        }
    }

    #[test]
    fn a_maximum_number_of_events_applies_to_every_mode() {
        assert_eq!(text("base", 64), "1,events-max=64");
        assert_eq!(text("suspend20", 8), "1,epoll=0/64/1,zero-waits=timed,events-max=8");
        assert!(library_settings(&DeliveryMode::default(), NonZeroU32::new(u32::MAX)).is_err());
    }

    #[test]
    fn the_library_comes_before_others_and_once() {
        let settings = library_settings(&"suspend20".parse().unwrap(), None).unwrap();
        let library = Path::new("/run/quell/libquell-preload-1.so");
        let preloaded = |before: &str| environment(library, &settings, Some(OsStr::new(before)))[0].1.clone();
        assert_eq!(preloaded(""), "/run/quell/libquell-preload-1.so");
        assert_eq!(preloaded("libjemalloc.so.2"), "/run/quell/libquell-preload-1.so:libjemalloc.so.2");
        assert_eq!(preloaded("/x/libquell-preload-0.so /y/a.so"), "/run/quell/libquell-preload-1.so:/y/a.so");
        let [_, (name, value)] = environment(library, &settings, None);
        assert_eq!(
            (name.to_str(), value.to_str()),
            (Some(ENVIRONMENT_VARIABLE), Some("1,epoll=0/64/1,zero-waits=timed"))
        );
    }
}
