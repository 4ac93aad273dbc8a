//! Tests of quell-study from outside, in one binary: each binary costs seconds of linking and tens of megabytes.

mod cli;
mod event_busy_loop;
mod irq_suspension;
mod low_latency_sockets;
mod production;
mod threaded_napi;
