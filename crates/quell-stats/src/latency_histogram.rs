//! Latencies recorded into a High Dynamic Range histogram of one fixed shape, so that any two can be
//! merged and every recording costs the same. The shape and its arithmetic are the `hdrhistogram`
//! crate's; this file decides the range, the precision, and how the histogram travels in a result
//! file.

use std::fmt;
use std::io::Read;
use std::str::FromStr;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use flate2::read::ZlibDecoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};

/// Counters of `u32` halve the cache lines that recording touches; 2³² latencies of one slot would
/// take half a day at 100,000 a second.
type Counts = Histogram<u32>;

const LOWEST_DISCERNIBLE_NS: u64 = 1;
const HIGHEST_TRACKABLE_NS: u64 = (1 << 36) - 1;
const SIGNIFICANT_DIGITS: u8 = 3;

/// Latencies in nanoseconds, from 0 to 68.7 s, each kept to one part in 1,024 or better.
///
/// Three significant digits mean slots no wider than 1/1,024 of the value they hold (values below
/// 2,048 ns are exact). Each doubling of the latency takes 4 KiB of counters, the whole histogram
/// 108 KiB, allocated once; latencies between 30 µs and 500 µs, which is nearly all of a run, stay
/// within 16 KiB, half of a usual first-level data cache. Recording allocates nothing and cannot
/// fail.
///
/// Latencies beyond [`LatencyHistogram::LIMIT`] are not lost: they are counted in the last slot
/// and told by [`overflowed`](LatencyHistogram::overflowed); a quantile that falls there reads as
/// the end of the range and is a lower bound.
///
/// As a string (and in serde) it is the HDR V2 compressed encoding in base64, which the HdrHistogram
/// tools of every language read.
#[derive(Clone, PartialEq)]
pub struct LatencyHistogram {
    counts: Counts,
}

impl LatencyHistogram {
    /// Latencies of this size and above share the last slot: 2³⁶ − 2²⁵ ns, 68.69 s.
    pub const LIMIT: Duration = Duration::from_nanos((1 << 36) - (1 << 25));

    /// The width of a slot relative to the latencies in it is at most this.
    pub const RELATIVE_ERROR: f64 = 1.0 / 1024.0;

    /// An empty histogram.
    #[must_use]
    pub fn new() -> Self {
        let counts = Counts::new_with_bounds(LOWEST_DISCERNIBLE_NS, HIGHEST_TRACKABLE_NS, SIGNIFICANT_DIGITS)
            .unwrap_or_else(|error| unreachable!("the bounds are constants: {error}"));
        Self { counts }
    }

    /// Counts one latency of `ns` nanoseconds.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.counts.saturating_record(ns);
    }

    /// Counts `times` latencies of `ns` nanoseconds.
    #[inline]
    pub fn record_n(&mut self, ns: u64, times: u32) {
        if times > 0 {
            self.counts.saturating_record_n(ns, times);
        }
    }

    /// Adds all that `other` counted.
    pub fn merge(&mut self, other: &Self) {
        self.counts.add(&other.counts).unwrap_or_else(|error| unreachable!("all histograms have one shape: {error}"));
    }

    /// Forgets everything, keeps the memory.
    pub fn clear(&mut self) {
        self.counts.reset();
    }

    /// How many latencies were recorded, those beyond the limit included.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.len()
    }

    /// Whether nothing was recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// How many latencies were at or beyond [`LIMIT`](Self::LIMIT), of unknown size.
    #[must_use]
    pub fn overflowed(&self) -> u64 {
        u64::from(self.counts.count_at(HIGHEST_TRACKABLE_NS))
    }

    /// The mean, each latency taken at the middle of its slot; absent when empty.
    #[must_use]
    pub fn mean(&self) -> Option<Duration> {
        self.unless_empty(|counts| counts.mean().round() as u64)
    }

    /// The lower end of the slot of the smallest latency; absent when empty.
    #[must_use]
    pub fn min(&self) -> Option<Duration> {
        self.unless_empty(Counts::min)
    }

    /// The upper end of the slot of the largest latency; absent when empty.
    #[must_use]
    pub fn max(&self) -> Option<Duration> {
        self.unless_empty(Counts::max)
    }

    /// The latency that a share `quantile` (0 to 1) of all recorded ones do not exceed, read at the
    /// upper end of its slot; absent when empty or when `quantile` is not between 0 and 1.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Option<Duration> {
        if !(0.0..=1.0).contains(&quantile) {
            return None;
        }
        self.unless_empty(|counts| counts.value_at_quantile(quantile))
    }

    /// The median; absent when empty.
    #[must_use]
    pub fn p50(&self) -> Option<Duration> {
        self.quantile(0.5)
    }

    /// The 95th percentile; absent when empty.
    #[must_use]
    pub fn p95(&self) -> Option<Duration> {
        self.quantile(0.95)
    }

    /// The 99th percentile; absent when empty.
    #[must_use]
    pub fn p99(&self) -> Option<Duration> {
        self.quantile(0.99)
    }

    /// The 99.9th percentile; absent when empty.
    #[must_use]
    pub fn p99_9(&self) -> Option<Duration> {
        self.quantile(0.999)
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

/// Why a string is no [`LatencyHistogram`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParseHistogramError {
    /// The text is not base64.
    #[error("a latency histogram is base64 text: {0}")]
    Base64(#[from] base64::DecodeError),
    /// The bytes are not a compressed HDR V2 histogram.
    #[error("not a compressed HDR V2 histogram: {0}")]
    Malformed(String),
    /// A histogram, but of another range or precision, which could not be merged with others.
    #[error(
        "a histogram of {digits} significant digits from {lowest} to {highest} ns; \
         latency histograms have 3 digits from 1 to 68719476735 ns"
    )]
    OtherShape {
        /// Its significant decimal digits.
        digits: u32,
        /// Its lowest discernible value, in ns.
        lowest: u64,
        /// Its highest trackable value, in ns.
        highest: u64,
    },
    /// The counts claim more bytes than a histogram of this shape can have.
    #[error("the histogram claims {claimed} bytes of counts, at most {limit} are possible")]
    TooLong {
        /// The claimed length, in bytes.
        claimed: u32,
        /// The largest possible length, in bytes.
        limit: u32,
    },
}

/// The parameters at the head of an HDR V2 histogram, checked before anything is allocated for it.
struct Header {
    payload_bytes: u32,
    digits: u32,
    lowest: u64,
    highest: u64,
}

impl Header {
    /// Cookie and length of the compressed envelope (4 bytes each).
    const ENVELOPE_BYTES: usize = 8;
    /// Cookie, payload length, normalising offset, digits (4 bytes each), lowest, highest (8 each).
    const BYTES: usize = 32;
    /// 27 half buckets of 1,024 slots, at most 9 bytes each.
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
    /// Base64 of the compressed HDR V2 encoding.
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
