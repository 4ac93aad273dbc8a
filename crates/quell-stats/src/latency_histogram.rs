//! HDR histograms of latencies. All have the same range and precision, so any two can be merged, and recording always
//! has the same cost. The crate `hdrhistogram` does the arithmetic.

use std::fmt;
use std::io::Read;
use std::str::FromStr;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use flate2::read::ZlibDecoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};

/// Counters of type `u32` halve the number of cache lines that recording touches. A counter overflows after half a day
/// at 100,000 latencies per second.
type Counts = Histogram<u32>;

const LOWEST_DISCERNIBLE_NS: u64 = 1;
const HIGHEST_TRACKABLE_NS: u64 = (1 << 36) - 1;
const SIGNIFICANT_DIGITS: u8 = 3;

/// Histogram of latencies from 0 to 68.7 s, in ns, with a relative error of at most 1/1,024.
///
/// Values below 2,048 ns are exact. Each doubling of the latency takes 4 KiB of counters. The whole histogram takes 108
/// KiB, which are allocated once. The counters for 30 to 500 µs, which cover nearly all latencies of a run, take 16
/// KiB. That is half of a typical L1 data cache. Recording neither allocates memory nor fails.
///
/// Latencies above [`LatencyHistogram::LIMIT`] are counted in the last slot and reported by
/// [`overflowed`](LatencyHistogram::overflowed). A quantile in the last slot is a lower bound.
///
/// The string form, which serde also uses, is the compressed HDR V2 encoding in base64. HdrHistogram tools in other
/// languages can read it.
#[derive(Clone, PartialEq)]
pub struct LatencyHistogram {
    counts: Counts,
}

impl LatencyHistogram {
    /// Lower end of the last slot: 2³⁶ − 2²⁵ ns, 68.69 s.
    pub const LIMIT: Duration = Duration::from_nanos((1 << 36) - (1 << 25));

    /// Maximum width of a slot, relative to the latencies in it.
    pub const RELATIVE_ERROR: f64 = 1.0 / 1024.0;

    /// Creates an empty histogram.
    #[must_use]
    pub fn new() -> Self {
        let counts = Counts::new_with_bounds(LOWEST_DISCERNIBLE_NS, HIGHEST_TRACKABLE_NS, SIGNIFICANT_DIGITS)
            .unwrap_or_else(|error| unreachable!("the bounds are constants: {error}"));
        Self { counts }
    }

    /// Records one latency of `ns` nanoseconds.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.counts.saturating_record(ns);
    }

    /// Records `times` latencies of `ns` nanoseconds.
    #[inline]
    pub fn record_n(&mut self, ns: u64, times: u32) {
        if times > 0 {
            self.counts.saturating_record_n(ns, times);
        }
    }

    /// Adds all latencies of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.counts.add(&other.counts).unwrap_or_else(|error| unreachable!("all histograms have one shape: {error}"));
    }

    /// Removes all latencies; the memory stays allocated.
    pub fn clear(&mut self) {
        self.counts.reset();
    }

    /// Number of recorded latencies, including those above the limit.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.len()
    }

    /// Whether no latency was recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Number of latencies at or above [`LIMIT`](Self::LIMIT), whose size is unknown.
    #[must_use]
    pub fn overflowed(&self) -> u64 {
        u64::from(self.counts.count_at(HIGHEST_TRACKABLE_NS))
    }

    /// Mean latency, with each latency taken at the middle of its slot. `None` if the histogram is empty.
    #[must_use]
    pub fn mean(&self) -> Option<Duration> {
        self.unless_empty(|counts| counts.mean().round() as u64)
    }

    /// Lower end of the slot of the smallest latency; `None` when empty.
    #[must_use]
    pub fn min(&self) -> Option<Duration> {
        self.unless_empty(Counts::min)
    }

    /// Upper end of the slot of the largest latency; `None` when empty.
    #[must_use]
    pub fn max(&self) -> Option<Duration> {
        self.unless_empty(Counts::max)
    }

    /// Quantile of the recorded latencies, from 0 to 1, as the upper end of its slot. `None` if the histogram is empty,
    /// or `quantile` is outside 0 to 1.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Option<Duration> {
        if !(0.0..=1.0).contains(&quantile) {
            return None;
        }
        self.unless_empty(|counts| counts.value_at_quantile(quantile))
    }

    /// Median; `None` when empty.
    #[must_use]
    pub fn p50(&self) -> Option<Duration> {
        self.quantile(0.5)
    }

    /// 95th percentile; `None` when empty.
    #[must_use]
    pub fn p95(&self) -> Option<Duration> {
        self.quantile(0.95)
    }

    /// 99th percentile; `None` when empty.
    #[must_use]
    pub fn p99(&self) -> Option<Duration> {
        self.quantile(0.99)
    }

    /// 99.9th percentile; `None` when empty.
    #[must_use]
    pub fn p99_9(&self) -> Option<Duration> {
        self.quantile(0.999)
    }

    /// Slots that are not empty, in ascending order: the upper end in ns, and the number of latencies. Recording them
    /// with [`record_n`](Self::record_n) creates an equal histogram.
    pub fn slots(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.counts.iter_recorded().map(|slot| (slot.value_iterated_to(), slot.count_at_value()))
    }

    fn unless_empty(&self, ns: impl FnOnce(&Counts) -> u64) -> Option<Duration> {
        (!self.is_empty()).then(|| Duration::from_nanos(ns(&self.counts)))
    }

    fn from_compressed(bytes: &[u8]) -> Result<Self, ParseHistogramError> {
        Header::read(bytes)?.check()?;
        let counts = Deserializer::new()
            .deserialize(&mut &bytes[..])
            .map_err(|error| ParseHistogramError::Malformed(error.to_string()))?;
        Ok(Self { counts })
    }
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for LatencyHistogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LatencyHistogram")
            .field("count", &self.count())
            .field("p50", &self.p50())
            .field("p99", &self.p99())
            .field("max", &self.max())
            .field("overflowed", &self.overflowed())
            .finish()
    }
}

/// Why a string cannot be read as a [`LatencyHistogram`].
#[allow(missing_docs, reason = "the texts of the errors say it")]
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParseHistogramError {
    #[error("the latency histogram is not valid base64: {0}")]
    Base64(#[from] base64::DecodeError),
    #[error("not a compressed HDR V2 histogram: {0}")]
    Malformed(String),
    /// The histogram has another range or precision, so it cannot be merged.
    #[error(
        "a histogram of {digits} significant digits from {lowest} to {highest} ns; \
         latency histograms have 3 digits from 1 to 68719476735 ns"
    )]
    OtherShape { digits: u32, lowest: u64, highest: u64 },
    #[error("the histogram's header claims {claimed} bytes of counts, but at most {limit} are possible")]
    TooLong { claimed: u32, limit: u32 },
}

/// Header of an HDR V2 histogram, checked before memory is allocated for the counts.
struct Header {
    payload_bytes: u32,
    digits: u32,
    lowest: u64,
    highest: u64,
}

impl Header {
    /// Cookie and length of the compressed envelope (4 bytes each).
    const ENVELOPE_BYTES: usize = 8;
    /// Size of the header: cookie, payload length, normalizing offset and digits (4 bytes each), lowest and highest
    /// value (8 bytes each).
    const BYTES: usize = 32;
    /// Maximum payload length: 27 half buckets of 1,024 slots with at most 9 bytes each.
    const PAYLOAD_LIMIT: u32 = 27 * 1024 * 9;

    fn read(bytes: &[u8]) -> Result<Self, ParseHistogramError> {
        let malformed = |what: &str| ParseHistogramError::Malformed(what.to_owned());
        let deflated = bytes.get(Self::ENVELOPE_BYTES..).ok_or_else(|| malformed("shorter than its header"))?;
        let mut head = [0; Self::BYTES];
        ZlibDecoder::new(deflated).read_exact(&mut head).map_err(|error| malformed(&error.to_string()))?;
        let u32_at = |at: usize| u32::from_be_bytes(std::array::from_fn(|i| head[at + i]));
        let u64_at = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| head[at + i]));
        Ok(Self { payload_bytes: u32_at(4), digits: u32_at(12), lowest: u64_at(16), highest: u64_at(24) })
    }

    fn check(&self) -> Result<(), ParseHistogramError> {
        let shape = (self.digits, self.lowest, self.highest);
        if shape != (u32::from(SIGNIFICANT_DIGITS), LOWEST_DISCERNIBLE_NS, HIGHEST_TRACKABLE_NS) {
            return Err(ParseHistogramError::OtherShape {
                digits: self.digits,
                lowest: self.lowest,
                highest: self.highest,
            });
        }
        if self.payload_bytes > Self::PAYLOAD_LIMIT {
            return Err(ParseHistogramError::TooLong { claimed: self.payload_bytes, limit: Self::PAYLOAD_LIMIT });
        }
        Ok(())
    }
}

impl fmt::Display for LatencyHistogram {
    /// Writes the compressed HDR V2 encoding in base64.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = Vec::new();
        V2DeflateSerializer::new().serialize(&self.counts, &mut bytes).map_err(|_| fmt::Error)?;
        f.write_str(&BASE64.encode(bytes))
    }
}

impl FromStr for LatencyHistogram {
    type Err = ParseHistogramError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::from_compressed(&BASE64.decode(text)?)
    }
}

impl serde::Serialize for LatencyHistogram {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for LatencyHistogram {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl schemars::JsonSchema for LatencyHistogram {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "LatencyHistogram".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "contentEncoding": "base64",
            "description": "Latencies in ns as an HDR histogram (V2, compressed): 3 significant \
                            digits, 1 to 68719476735 ns; the last slot counts what was beyond"
        })
    }
}
