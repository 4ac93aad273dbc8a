//! The settings nearest to a mode on a kernel without settings per NAPI instance (`napi-set`). They consist of settings
//! of the whole device, and busy polling of epolls or sockets. Callers must tell the user that these settings are not
//! the mode itself.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kind::ModeKind;
use crate::mode::DeliveryMode;
use crate::napi::{NapiSettings, Threaded};
use crate::settings::EpollParams;
use crate::timeout::timeout_text;

/// Kernel interfaces that are available besides `napi-set`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offered {
    /// Whether sysfs has `napi_defer_hard_irqs` and `gro_flush_timeout` of a device (Linux 5.11).
    pub device_deferral: bool,
    /// Whether sysfs has `threaded` of a device (Linux 5.12).
    pub device_threads: bool,
    /// Whether epolls have `EPIOCSPARAMS` (Linux 6.9).
    pub epoll_parameters: bool,
    /// Whether sockets have `SO_BUSY_POLL` and `SO_PREFER_BUSY_POLL` (Linux 5.11).
    pub socket_busy_poll: bool,
}

/// Settings that replace a mode on an older kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Nearest {
    /// Settings of all NAPI instances of the device, via sysfs. `irq-suspend-timeout` is 0.
    pub device: NapiSettings,
    /// Busy-poll parameters of the program's epolls.
    pub epoll: EpollParams,
    /// `SO_BUSY_POLL` in µs, together with `SO_PREFER_BUSY_POLL`. It applies to sockets that the program reads with a
    /// blocking `recv`.
    pub socket_busy_poll_usecs: Option<u32>,
}

impl DeliveryMode {
    /// Returns the nearest settings that the interfaces in `offered` allow. `None` if there are none, or the mode is
    /// `base`, or polls from outside, for which nothing stands in.
    ///
    /// Suspension needs `napi-set`. Its replacement is `napibusy`, which busy polls while there is work and defers
    /// interrupts otherwise.
    #[must_use]
    pub fn nearest(&self, offered: Offered) -> Option<Nearest> {
        if self.poller().is_some() {
            return None;
        }
        let wanted = if self.napi().irq_suspend_timeout_ns > 0 { ModeKind::NapiBusy.into() } else { *self };
        let (napi, epoll) = (wanted.napi(), wanted.epoll().unwrap_or_default());
        let deferral = napi.defers() && offered.device_deferral;
        let threads = napi.threaded != Threaded::Off && offered.device_threads;
        let by_socket = !offered.epoll_parameters && offered.socket_busy_poll;
        let nearest = Nearest {
            device: NapiSettings {
                defer_hard_irqs: if deferral { napi.defer_hard_irqs } else { 0 },
                gro_flush_timeout_ns: if deferral { napi.gro_flush_timeout_ns } else { 0 },
                irq_suspend_timeout_ns: 0,
                threaded: if threads { Threaded::Thread } else { Threaded::Off },
            },
            epoll: if offered.epoll_parameters { epoll } else { EpollParams::default() },
            socket_busy_poll_usecs: Some(epoll.busy_poll_usecs).filter(|usecs| by_socket && *usecs > 0),
        };
        (nearest != Nearest::default()).then_some(nearest)
    }
}

impl fmt::Display for Nearest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NapiSettings { defer_hard_irqs, gro_flush_timeout_ns, threaded, .. } = self.device;
        let deferral = self.device.defers().then(|| {
            let timeout = timeout_text(gro_flush_timeout_ns);
            format!("deferral of the whole device by sysfs ({defer_hard_irqs}, {timeout})")
        });
        let threads = (threaded != Threaded::Off).then(|| "threads for the whole device by sysfs".to_owned());
        let epoll = (self.epoll != EpollParams::default())
            .then(|| format!("EPIOCSPARAMS of the epolls ({})", self.epoll.short()));
        let sockets = self.socket_busy_poll_usecs.map(|usecs| format!("SO_BUSY_POLL of the sockets ({usecs} us)"));
        let parts: Vec<String> = [deferral, threads, epoll, sockets].into_iter().flatten().collect();
        f.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interfaces of Linux 6.12.
    const EPOLLS: Offered =
        Offered { device_deferral: true, device_threads: true, epoll_parameters: true, socket_busy_poll: true };
    /// Interfaces of Linux 6.1.
    const SOCKETS: Offered = Offered { epoll_parameters: false, ..EPOLLS };

    fn nearest(mode: &str, offered: Offered) -> Option<String> {
        Some(mode.parse::<DeliveryMode>().unwrap().nearest(offered)?.to_string())
    }

    #[test]
    fn deferral_is_set_for_the_whole_device() {
        let device = Some("deferral of the whole device by sysfs (100, 20us)".to_owned());
        assert_eq!(nearest("defer20", EPOLLS), device);
        assert_eq!(nearest("defer20", SOCKETS), device);
    }

    #[test]
    fn busy_polling_is_set_on_epolls_and_without_epoll_parameters_on_sockets() {
        let by = |polling: &str| Some(format!("deferral of the whole device by sysfs (100, 200us), {polling}"));
        assert_eq!(nearest("napibusy", EPOLLS), by("EPIOCSPARAMS of the epolls (64/64/1)"));
        assert_eq!(nearest("napibusy", SOCKETS), by("SO_BUSY_POLL of the sockets (64 us)"));
    }

    #[test]
    fn suspension_is_replaced_by_napibusy() {
        assert_eq!(nearest("suspend20", EPOLLS), nearest("napibusy", EPOLLS));
    }

    #[test]
    fn a_busy_polling_thread_is_replaced_by_one_that_sleeps() {
        assert_eq!(nearest("threadedbusy", SOCKETS).as_deref(), Some("threads for the whole device by sysfs"));
    }

    #[test]
    fn without_any_interface_there_is_no_replacement() {
        assert_eq!(nearest("napibusy", Offered::default()), None);
        assert_eq!(nearest("base", EPOLLS), None);
    }
}
