//! Launch parameters, combined from several sources. The command line overrides the environment, and the environment
//! overrides the profile. Each value records its source for messages.

use std::fmt;
use std::num::NonZeroU32;

use quell_mode::profile::{Place, Placed, ProgramProfile};
use quell_mode::{DeliveryMode, ParseModeError};

pub mod variable {
    pub const MODE: &str = "QUELL_RUN_MODE";
    pub const MAX_EVENTS: &str = "QUELL_RUN_MAX_EVENTS";
    pub const DEVICES: &str = "QUELL_RUN_DEVICES";
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen<T> {
    pub value: T,
    pub by: By,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum By {
    CommandLine,
    Environment(&'static str),
    Profile(Place),
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CommandLine => f.write_str("command line"),
            Self::Environment(name) => f.write_str(name),
            Self::Profile(place) => place.fmt(f),
        }
    }
}

/// Parameters from one source. A field is `None` or empty if the source does not set it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Said {
    pub mode: Option<DeliveryMode>,
    pub max_events: Option<NonZeroU32>,
    pub devices: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchChoice {
    pub mode: Chosen<DeliveryMode>,
    /// Maximum number of events per wait. If it is absent, the program's own limit applies.
    pub max_events: Option<Chosen<NonZeroU32>>,
    /// Devices whose queues are configured. If they are absent, all devices in the program's network namespace are
    /// used.
    pub devices: Option<Chosen<Vec<String>>>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChoiceError {
    #[error("no delivery mode given: use `quell run MODE -- COMMAND`, or a profile with a mode")]
    NoMode,
    #[error("QUELL_RUN_MODE: {0}")]
    Mode(ParseModeError),
    #[error("QUELL_RUN_MAX_EVENTS: invalid number of events `{0}`: expected an integer from 1")]
    MaxEvents(String),
}

impl Said {
    pub fn by_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Self, ChoiceError> {
        let given = |name| variable(name).filter(|text| !text.is_empty());
        let events = |text: String| text.parse().map_err(|_| ChoiceError::MaxEvents(text));
        let devices = given(variable::DEVICES).unwrap_or_default();
        Ok(Self {
            mode: given(variable::MODE).map(|text| text.parse().map_err(ChoiceError::Mode)).transpose()?,
            max_events: given(variable::MAX_EVENTS).map(events).transpose()?,
            devices: devices.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
        })
    }
}

impl LaunchChoice {
    pub fn of(command_line: Said, environment: Said, profile: Option<ProgramProfile>) -> Result<Self, ChoiceError> {
        let (of_profile, cap_of_profile) = profile.map_or((None, None), |profile| (profile.mode, profile.max_events));
        Ok(Self {
            mode: first(command_line.mode, environment.mode, variable::MODE, of_profile).ok_or(ChoiceError::NoMode)?,
            max_events: first(command_line.max_events, environment.max_events, variable::MAX_EVENTS, cap_of_profile),
            devices: first(some(command_line.devices), some(environment.devices), variable::DEVICES, None),
        })
    }
}

fn some(devices: Vec<String>) -> Option<Vec<String>> {
    (!devices.is_empty()).then_some(devices)
}

fn first<T>(
    command_line: Option<T>,
    environment: Option<T>,
    name: &'static str,
    profile: Option<Placed<T>>,
) -> Option<Chosen<T>> {
    let by_command_line = command_line.map(|value| Chosen { value, by: By::CommandLine });
    let by_environment = || environment.map(|value| Chosen { value, by: By::Environment(name) });
    let by_profile = || profile.map(|placed| Chosen { value: placed.value, by: By::Profile(placed.place) });
    by_command_line.or_else(by_environment).or_else(by_profile)
}

#[cfg(test)]
mod tests {
    use quell_mode::profile::{Profile, Source};

    use super::*;

    fn mode(text: &str) -> Said {
        Said { mode: Some(text.parse().unwrap()), ..Said::default() }
    }

    fn profile() -> Option<ProgramProfile> {
        let text = "[program]\nmode = 'suspend20'\nmax-events = 64\n";
        Profile::parse(&[Source::new("redis.toml", text)]).unwrap().program
    }

    fn chosen(command_line: Said, environment: Said) -> (String, String) {
        let choice = LaunchChoice::of(command_line, environment, profile()).unwrap();
        (choice.mode.value.to_string(), choice.mode.by.to_string())
    }

    #[test]
    fn the_command_line_overrides_the_environment_which_overrides_the_profile() {
        let said = |mode: &str, by: &str| (mode.to_owned(), by.to_owned());
        assert_eq!(chosen(Said::default(), Said::default()), said("suspend20", "redis.toml:2:8"));
        assert_eq!(chosen(Said::default(), mode("base")), said("base", "QUELL_RUN_MODE"));
        assert_eq!(chosen(mode("fullbusy"), mode("base")), said("fullbusy", "command line"));
    }

    #[test]
    fn each_value_is_chosen_independently() {
        let environment = Said { max_events: NonZeroU32::new(8), ..Said::default() };
        let choice = LaunchChoice::of(mode("base"), environment, profile()).unwrap();
        let cap = choice.max_events.unwrap();
        assert_eq!((cap.value.get(), cap.by), (8, By::Environment(variable::MAX_EVENTS)));
        assert_eq!(choice.devices, None);
    }

    #[test]
    fn a_launch_requires_a_mode() {
        assert_eq!(LaunchChoice::of(Said::default(), Said::default(), None), Err(ChoiceError::NoMode));
    }

    #[test]
    fn an_invalid_variable_is_refused_and_an_empty_one_is_ignored() {
        let read = |name: &'static str, text: &'static str| {
            Said::by_environment(move |asked| (asked == name).then(|| text.to_owned()))
        };
        assert_eq!(read(variable::MODE, ""), Ok(Said::default()));
        assert_eq!(read(variable::DEVICES, "eth0,,eth1").unwrap().devices, ["eth0", "eth1"]);
        assert_eq!(read(variable::MAX_EVENTS, "0"), Err(ChoiceError::MaxEvents("0".to_owned())));
        let refused = read(variable::MODE, "suspended20").unwrap_err().to_string();
        assert!(refused.starts_with("QUELL_RUN_MODE: delivery mode 'suspended20': "), "{refused}");
    }
}
