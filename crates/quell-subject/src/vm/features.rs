//! Features of a guest's kernel and driver that Quell sets or reads. Each feature is probed instead of inferred from
//! the kernel version.

use quell_host::snapshot::{Device, Linked, Provenance, Reading, UnknownReason};
use quell_mode::EpollParams;
use quell_result::facts::Feature;

/// Lists the features of a device's queues and of the server's epolls.
#[must_use]
pub fn of(device: &Device, epoll: Option<&Reading<EpollParams>>) -> Vec<Feature> {
    let napi = device.napis.known_elements().next();
    let of_napi = |name: &str, state: Option<String>| feature(name, state.unwrap_or_else(|| "no".to_owned()));
    let queue = device.rx_queues.known_elements().next();
    vec![
        feature("netlink `napi-get`: NAPI instances", state(&device.napis)),
        feature("netlink `queue-get`: a queue's NAPI", queue.map_or("no".to_owned(), |queue| link(&queue.napi))),
        of_napi("`irq` of a NAPI", napi.map(|napi| link(&napi.irq))),
        of_napi("`defer-hard-irqs` per NAPI", napi.map(|napi| state(&napi.defer_hard_irqs).to_owned())),
        of_napi("`irq-suspend-timeout` per NAPI", napi.map(|napi| state(&napi.irq_suspend_timeout_ns).to_owned())),
        of_napi("`threaded` per NAPI", napi.map(|napi| state(&napi.threading).to_owned())),
        feature("sysfs `napi_defer_hard_irqs` of a device", state(&device.defaults.defer_hard_irqs)),
        feature("`EPIOCSPARAMS`: busy-poll parameters of an epoll", epoll.map_or("no", state)),
    ]
}

fn feature(name: &str, state: impl Into<String>) -> Feature {
    Feature { name: name.to_owned(), state: state.into() }
}

fn state<T>(reading: &Reading<T>) -> &'static str {
    reading.why_unknown().map_or("yes", |unknown| in_words(unknown.reason))
}

fn link<T>(reading: &Reading<Option<Linked<T>>>) -> String {
    match reading.known() {
        Some(Some(Linked { source: Provenance::Kernel, .. })) => "yes".to_owned(),
        Some(Some(Linked { source: Provenance::Name, .. })) => "by its name".to_owned(),
        Some(Some(_)) => "by its place".to_owned(),
        Some(None) => "none".to_owned(),
        None => state(reading).to_owned(),
    }
}

fn in_words(why: UnknownReason) -> &'static str {
    match why {
        UnknownReason::Absent => "absent",
        UnknownReason::UnsupportedByKernel => "not in this kernel",
        UnknownReason::UnsupportedByDriver => "the driver does not report it",
        UnknownReason::Denied { .. } => "denied",
        _ => "could not be read",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_kernel_features_and_unreported_driver_facts_are_distinguished() {
        let kernel: Reading<u32> = Reading::unknown(UnknownReason::UnsupportedByKernel, "");
        let driver: Reading<Option<Linked<u32>>> = Reading::unknown(UnknownReason::UnsupportedByDriver, "");
        assert_eq!((state(&kernel), link(&driver).as_str()), ("not in this kernel", "the driver does not report it"));
        assert_eq!(state(&Reading::Known(0_u32)), "yes");
    }

    #[test]
    fn an_interrupt_found_by_name_is_not_shown_as_reported_by_the_kernel() {
        let linked = |source| Reading::Known(Some(Linked { to: 25_u32, source }));
        assert_eq!(link(&linked(Provenance::Kernel)), "yes");
        assert_eq!(link(&linked(Provenance::Name)), "by its name");
    }
}
