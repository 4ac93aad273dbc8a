//! Parsing of the output of the real clients.

use std::time::Duration;

use super::client::{Client, Effort, Found};

const CLOSED: Effort = Effort::Closed { seconds: 2.0, expected_per_s: 5_000.0 };

#[test]
fn output_of_wrk_is_parsed() {
    let printed = "Running 1s test @ http://127.0.0.1:8080/\n  1 threads and 8 connections\n  \
        Thread Stats   Avg      Stdev     Max   +/- Stdev\n    Latency   120.10us   90.00us   4.00ms   90.00%\n  \
        Latency Distribution\n     50%  101.00us\n     75%  130.00us\n     90%    1.23ms\n     99%    2.00s\n  \
        51234 requests in 1.00s, 41.00MB read\n  Socket errors: connect 0, read 2, write 0, timeout 1\n  \
        Non-2xx or 3xx responses: 4\nRequests/sec:  51200.50\nTransfer/sec:     41.00MB\n";
    let expected = Found { answered: 51_234, per_s: 51_200.5, p50: Some(Duration::from_micros(101)), failed: 7 };
    assert_eq!(Client::Wrk.read(CLOSED, printed), Ok(expected));
}

#[test]
fn output_of_wrk_without_responses_has_no_median() {
    let printed = "  Latency Distribution\n     50%    0.00us\n  0 requests in 1.00s, 0.00B read\nRequests/sec: 0.00\n";
    assert_eq!(Client::Wrk.read(CLOSED, printed).unwrap().p50, None);
}

#[test]
fn output_of_redis_benchmark_is_parsed() {
    let printed = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\"\n\
        \"GET\",\"97656.25\",\"0.321\",\"0.088\",\"0.311\",\"0.471\"\n";
    let expected = Found { answered: 10_000, per_s: 97_656.25, p50: Some(Duration::from_micros(311)), failed: 0 };
    assert_eq!(Client::RedisBenchmark.read(CLOSED, printed), Ok(expected));
}

#[test]
fn other_output_is_an_error() {
    for client in [Client::QuellLoadEcho, Client::RedisBenchmark, Client::Wrk] {
        assert!(client.read(CLOSED, "Segmentation fault").is_err());
    }
}
