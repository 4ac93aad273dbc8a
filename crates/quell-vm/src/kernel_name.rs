//! Names of lab kernels. A name consists of the kernel series and, unless the kernel is a cloud build, its flavour.

use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flavour {
    /// The small build for virtual machines, with virtio devices only.
    Cloud,
    /// The general build, with drivers of real NICs (`e1000e`).
    Full,
}

/// Name of a kernel, by series and flavour: `6.12` is the cloud build, `6.12-full` the full build.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct KernelName {
    major: u32,
    minor: u32,
    flavour: Flavour,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("invalid kernel `{0}`: expected a series such as 6.12, or 6.12-full for the build with drivers of real NICs")]
pub struct InvalidKernelName(String);

impl KernelName {
    /// Name of the `flavour` build for a package version such as `6.12.107-1`. Returns `None` if the version does not
    /// start with two numbers.
    #[must_use]
    pub fn of_version(version: &str, flavour: Flavour) -> Option<Self> {
        let (major, rest) = version.split_once('.')?;
        let minor = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        Some(Self { major: number(major)?, minor: number(minor)?, flavour })
    }

    /// Sort key: by series, and within a series with the cloud build last.
    pub(crate) fn newest_and_leanest(&self) -> (u32, u32, Reverse<Flavour>) {
        (self.major, self.minor, Reverse(self.flavour))
    }

    #[must_use]
    pub fn flavour(&self) -> Flavour {
        self.flavour
    }
}

/// Parses a number without sign and leading zeros, so that each kernel has only one name.
fn number(text: &str) -> Option<u32> {
    let number: u32 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

impl FromStr for KernelName {
    type Err = InvalidKernelName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (series, flavour) =
            text.strip_suffix("-full").map_or((text, Flavour::Cloud), |series| (series, Flavour::Full));
        let parsed = series.split_once('.').and_then(|(major, minor)| Some((number(major)?, number(minor)?)));
        let (major, minor) = parsed.ok_or_else(|| InvalidKernelName(text.to_owned()))?;
        Ok(Self { major, minor, flavour })
    }
}

impl fmt::Display for KernelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = match self.flavour {
            Flavour::Cloud => "",
            Flavour::Full => "-full",
        };
        write!(f, "{}.{}{suffix}", self.major, self.minor)
    }
}

impl TryFrom<String> for KernelName {
    type Error = InvalidKernelName;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<KernelName> for String {
    fn from(name: KernelName) -> Self {
        name.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_package_version_belongs_to_a_series() {
        let name = |version| KernelName::of_version(version, Flavour::Cloud).unwrap().to_string();
        assert_eq!(name("7.3.4-1~bpo13+1"), "7.3");
        assert_eq!(name("6.1.176-1"), "6.1");
        assert_eq!(KernelName::of_version("unstable", Flavour::Cloud), None);
    }

    #[test]
    fn a_later_series_sorts_after_an_earlier_one() {
        let name = |text: &str| text.parse::<KernelName>().unwrap();
        assert!(name("6.9") < name("6.12") && name("6.12") < name("6.12-full") && name("6.12-full") < name("7.3"));
    }

    #[test]
    fn a_path_outside_the_cache_is_not_a_kernel_name() {
        for text in ["", "6", "../6.12", "6.12/..", "6.012", "+6.1", "6.12-fast", "6.12-full-full"] {
            assert!(text.parse::<KernelName>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_displayed_name_parses_back(major: u32, minor: u32, full: bool) {
            let name = KernelName { major, minor, flavour: if full { Flavour::Full } else { Flavour::Cloud } };
            prop_assert_eq!(name.to_string().parse::<KernelName>().unwrap(), name);
        }
    }
}
