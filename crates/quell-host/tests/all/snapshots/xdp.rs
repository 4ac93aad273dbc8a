//! Edits that cause findings about AF_XDP sockets.

use super::*;

pub(super) fn of_xdp() -> Vec<Edit> {
    use Severity::{Serious, Warning};
    vec![
        edit("xdp-socket-drops", Warning, vec![("/processes/0/files", with_xdp_socket(false, 7))]),
        edit("xdp-socket-cannot-busy-poll", Warning, vec![("/processes/0/files", with_xdp_socket(true, 0))]),
        edit("xdp-socket-waits-for-timer", Serious, on_slow_queue(with_xdp_socket(false, 0))),
    ]
}

pub(super) fn harmless_of_xdp() -> Vec<HarmlessEdit> {
    vec![
        harmless(
            "xdp-socket-drops",
            "the socket lost nothing",
            vec![("/processes/0/files", with_xdp_socket(false, 0))],
        ),
        harmless(
            "xdp-socket-cannot-busy-poll",
            "the socket does not ask for busy polling",
            vec![("/processes/0/files", with_xdp_socket(false, 0))],
        ),
        harmless("xdp-socket-waits-for-timer", "the socket polls the queue", on_slow_queue(with_polling_xdp_socket())),
    ]
}

/// The files of a program with an AF_XDP socket besides.
fn with_xdp_socket(prefer_busy_poll: bool, lost: u64) -> Value {
    let mut files = healthy()["processes"][0]["files"].clone();
    files["xdp-sockets"] = json!([31]);
    files["xdp-details"] = json!([{
        "fd": 31, "bound": null, "zero-copy": false, "napi": null, "prefer-busy-poll": prefer_busy_poll, "busy-poll-us": 0,
        "stats": {
            "rx-dropped": lost, "rx-ring-full": 0, "rx-fill-ring-empty": null, "rx-invalid-descriptors": 0,
            "tx-invalid-descriptors": 0,
        },
    }]);
    files
}

/// The AF_XDP socket of these files is bound to a queue whose timer is long, and which no epoll polls.
fn on_slow_queue(mut files: Value) -> Vec<(&'static str, Value)> {
    let host = healthy();
    let device = &host["devices"][0];
    files["xdp-details"][0]["bound"] =
        json!({"namespace": device["namespace"], "ifindex": device["ifindex"], "rx-queue": 0, "need-wakeup": true});
    for epoll in files["epolls"].as_array_mut().unwrap() {
        epoll["params"] = json!({"busy_poll_usecs": 0, "busy_poll_budget": 0, "prefer_busy_poll": false});
    }
    vec![("/processes/0/files", files), ("/devices/0/napis/0/gro-flush-timeout-ns", json!(5_000_000))]
}

/// An AF_XDP socket that polls its queue by NAPI ID.
fn with_polling_xdp_socket() -> Value {
    let mut files = with_xdp_socket(true, 0);
    files["xdp-details"][0]["napi"] = json!(8_193);
    files
}
