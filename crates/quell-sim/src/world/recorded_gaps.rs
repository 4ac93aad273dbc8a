//! Arrivals recorded elsewhere, as text: one moment a line. Reading the file is somebody else's
//! business.

use super::Gaps;
use crate::engine::Ns;

/// Why a text is no record of arrivals.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordedGapsError {
    /// A line is no moment.
    #[error("line {line}: `{text}` is no moment in ns")]
    NoMoment {
        /// The line, from 1.
        line: usize,
        /// What it says.
        text: String,
    },
    /// A moment is before the one in front of it.
    #[error("line {line}: {at_ns} ns is before the arrival in front of it; moments ascend")]
    Descending {
        /// The line, from 1.
        line: usize,
        /// The moment.
        at_ns: Ns,
    },
    /// There is no time between any two arrivals.
    #[error("a record needs two arrivals at different moments")]
    NoGap,
}

impl Gaps {
    /// Reads arrivals from text: on each line a moment in whole ns since any beginning, ascending.
    /// Empty lines and what follows a `#` are skipped. The gaps between them are repeated for as
    /// long as a run goes on.
    ///
    /// # Errors
    ///
    /// The first line that is no moment or goes back in time; fewer than two moments.
    pub fn recorded(text: &str) -> Result<Self, RecordedGapsError> {
        let mut before: Option<Ns> = None;
        let mut gaps = Vec::new();
        for (index, full) in text.lines().enumerate() {
            let line = index + 1;
            let content = full.split('#').next().unwrap_or_default().trim();
            if content.is_empty() {
                continue;
            }
            let at_ns: Ns =
                content.parse().map_err(|_| RecordedGapsError::NoMoment { line, text: content.to_owned() })?;
            if let Some(before_ns) = before {
                let gap_ns = at_ns.checked_sub(before_ns).ok_or(RecordedGapsError::Descending { line, at_ns })?;
                gaps.push(gap_ns);
            }
            before = Some(at_ns);
        }
        if gaps.iter().all(|&gap_ns| gap_ns == 0) {
            return Err(RecordedGapsError::NoGap);
        }
        Ok(Self::Recorded(gaps))
    }

    /// Requests a second of a recorded series; absent for a distribution, whose rate is given apart.
    #[must_use]
    pub fn recorded_rate_qps(&self) -> Option<f64> {
        let Self::Recorded(series) = self else { return None };
        let total_ns: Ns = series.iter().sum();
        (total_ns > 0).then(|| series.len() as f64 / (total_ns as f64 / 1e9))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_moments_and_becomes_gaps() {
        let gaps = Gaps::recorded("# two flows\n1000\n1500 # late\n\n4000\n").expect("a record");
        assert_eq!(gaps, Gaps::Recorded(vec![500, 2500]));
        assert_eq!(gaps.recorded_rate_qps().map(f64::round), Some(666_667.0));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let error = |text| Gaps::recorded(text).expect_err("no record").to_string();
        assert!(error("10\nsoon\n").contains("line 2: `soon`"));
        assert!(error("10\n9\n").contains("line 2: 9 ns"));
        assert_eq!(Gaps::recorded("10\n"), Err(RecordedGapsError::NoGap));
        assert_eq!(Gaps::recorded("10\n10\n"), Err(RecordedGapsError::NoGap));
    }
}
