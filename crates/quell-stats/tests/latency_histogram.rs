//! Tests of the latency histogram through the public interface: range, precision, empty histograms and the string form.

use std::time::Duration;

use proptest::prelude::*;
use quell_stats::{LatencyHistogram, ParseHistogramError};

fn of(latencies_ns: &[u64]) -> LatencyHistogram {
    let mut histogram = LatencyHistogram::new();
    for &ns in latencies_ns {
        histogram.record(ns);
    }
    histogram
}

#[test]
fn an_empty_histogram_has_a_count_and_no_quantiles() {
    let empty = LatencyHistogram::new();
    assert_eq!(empty.count(), 0);
    assert_eq!(empty.overflowed(), 0);
    assert_eq!(empty.mean(), None);
    assert_eq!(empty.min(), None);
    assert_eq!(empty.max(), None);
    assert_eq!(empty.p99(), None);
}

#[test]
fn a_latency_of_zero_is_recorded() {
    let histogram = of(&[0]);
    assert_eq!(histogram.count(), 1);
    assert_eq!(histogram.p50(), Some(Duration::ZERO));
    assert_eq!(histogram.max(), Some(Duration::ZERO));
}

#[test]
fn named_quantiles_of_a_thousand_equal_steps_are_exact() {
    let histogram = of(&(1..=1000).collect::<Vec<_>>());
    assert_eq!(histogram.p50(), Some(Duration::from_nanos(500)));
    assert_eq!(histogram.p95(), Some(Duration::from_nanos(950)));
    assert_eq!(histogram.p99(), Some(Duration::from_nanos(990)));
    assert_eq!(histogram.p99_9(), Some(Duration::from_nanos(999)));
    assert_eq!(histogram.min(), Some(Duration::from_nanos(1)));
    assert_eq!(histogram.max(), Some(Duration::from_nanos(1000)));
    assert_eq!(histogram.mean(), Some(Duration::from_nanos(501)));
}

#[test]
fn a_quantile_outside_zero_to_one_is_absent() {
    let histogram = of(&[5]);
    assert_eq!(histogram.quantile(-0.1), None);
    assert_eq!(histogram.quantile(1.1), None);
    assert_eq!(histogram.quantile(f64::NAN), None);
}

#[test]
fn latencies_beyond_the_limit_are_counted_as_overflowed() {
    let limit_ns = LatencyHistogram::LIMIT.as_nanos() as u64;
    let histogram = of(&[limit_ns - 1, limit_ns, 1 << 36, u64::MAX]);
    assert_eq!(histogram.count(), 4);
    assert_eq!(histogram.overflowed(), 3);
    assert!(histogram.max() >= Some(LatencyHistogram::LIMIT));
}

#[test]
fn overflowed_latencies_survive_a_round_trip_through_text() {
    let histogram = of(&[10, u64::MAX, u64::MAX]);
    let back: LatencyHistogram = histogram.to_string().parse().unwrap();
    assert_eq!(back.overflowed(), 2);
}

#[test]
fn recording_zero_times_changes_nothing() {
    let mut histogram = LatencyHistogram::new();
    histogram.record_n(1_000_000, 0);
    assert_eq!(histogram, LatencyHistogram::new());
    assert_eq!(histogram.max(), None);
}

#[test]
fn clearing_leaves_an_empty_histogram() {
    let mut histogram = of(&[1, 2, u64::MAX]);
    histogram.clear();
    assert_eq!(histogram, LatencyHistogram::new());
}

#[test]
fn text_that_is_not_a_histogram_is_refused_with_the_reason() {
    let parse = |text: &str| text.parse::<LatencyHistogram>();
    assert!(matches!(parse("%%%"), Err(ParseHistogramError::Base64(_))));
    assert!(matches!(parse(""), Err(ParseHistogramError::Malformed(_))));
    assert!(matches!(parse("AAAAAAAAAAAAAAAA"), Err(ParseHistogramError::Malformed(_))));
}

#[test]
fn a_histogram_of_another_precision_is_refused() {
    use base64::Engine;
    use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};
    let other = hdrhistogram::Histogram::<u32>::new_with_bounds(1, 1_000_000, 2).unwrap();
    let mut bytes = Vec::new();
    V2DeflateSerializer::new().serialize(&other, &mut bytes).unwrap();
    let text = base64::engine::general_purpose::STANDARD.encode(bytes);
    let refusal = text.parse::<LatencyHistogram>().unwrap_err();
    assert!(matches!(refusal, ParseHistogramError::OtherShape { digits: 2, .. }), "{refusal}");
}

proptest! {
    #[test]
    fn every_latency_reads_back_within_the_relative_error(
        ns in 0..LatencyHistogram::LIMIT.as_nanos() as u64
    ) {
        let read = of(&[ns]).p50().unwrap().as_nanos() as u64;
        prop_assert!(read >= ns);
        prop_assert!((read - ns) as f64 <= ns as f64 * LatencyHistogram::RELATIVE_ERROR);
    }

    #[test]
    fn a_histogram_survives_a_round_trip_through_text_and_json(
        latencies in prop::collection::vec(any::<u64>().prop_map(|bits| bits >> (bits % 60)), 0..300)
    ) {
        let histogram = of(&latencies);
        let from_text: LatencyHistogram = histogram.to_string().parse().unwrap();
        prop_assert_eq!(&from_text, &histogram);
        let json = serde_json::to_string(&histogram).unwrap();
        let from_json: LatencyHistogram = serde_json::from_str(&json).unwrap();
        prop_assert_eq!(&from_json, &histogram);
        prop_assert_eq!(from_json.max(), histogram.max());
    }

    #[test]
    fn merging_equals_recording_all_in_one(
        a in prop::collection::vec(any::<u64>(), 0..50),
        b in prop::collection::vec(0..10_000_000u64, 0..50),
    ) {
        let mut merged = of(&a);
        merged.merge(&of(&b));
        prop_assert_eq!(merged, of(&[a, b].concat()));
    }

    #[test]
    fn the_parser_panics_on_no_text(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        use base64::Engine;
        let text = base64::engine::general_purpose::STANDARD.encode(bytes);
        let _ = text.parse::<LatencyHistogram>();
    }

    #[test]
    fn the_parser_panics_on_no_damaged_byte(at in 0usize..4096, flip in 1u8..) {
        use base64::Engine;
        let engine = base64::engine::general_purpose::STANDARD;
        let mut bytes = engine.decode(of(&[1, 50_000, 51_000, 1 << 40]).to_string()).unwrap();
        let at = at % bytes.len();
        bytes[at] ^= flip;
        let _ = engine.encode(bytes).parse::<LatencyHistogram>();
    }

    #[test]
    fn the_parser_panics_on_no_counts_behind_a_valid_header(
        payload in prop::collection::vec(any::<u8>(), 0..400)
    ) {
        use base64::Engine;
        use std::io::Write;
        let mut inner = Vec::new();
        inner.extend(0x1c84_9313_u32.to_be_bytes());
        inner.extend((payload.len() as u32).to_be_bytes());
        inner.extend(0_u32.to_be_bytes());
        inner.extend(3_u32.to_be_bytes());
        inner.extend(1_u64.to_be_bytes());
        inner.extend(((1_u64 << 36) - 1).to_be_bytes());
        inner.extend(1.0_f64.to_be_bytes());
        inner.extend(&payload);
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        zlib.write_all(&inner).unwrap();
        let deflated = zlib.finish().unwrap();
        let mut bytes = 0x1c84_9314_u32.to_be_bytes().to_vec();
        bytes.extend((deflated.len() as u32).to_be_bytes());
        bytes.extend(deflated);
        let text = base64::engine::general_purpose::STANDARD.encode(bytes);
        if let Ok(histogram) = text.parse::<LatencyHistogram>() {
            let _ = (histogram.p99(), histogram.mean(), histogram.max());
        }
    }
}
