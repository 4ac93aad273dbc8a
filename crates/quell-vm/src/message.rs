//! Messages from a guest to its host: one JSON value per line, over a separate serial port. Kernel messages go to
//! another port and are never parsed.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Message {
    /// The guest's init process mounted file systems and loaded modules, and is about to start the command.
    Started {
        kernel: String,
    },
    Output(String),
    Diagnostic(String),
    /// The command ended. This is the last message.
    Ended {
        /// Exit code. Absent if a signal ended the command.
        code: Option<i32>,
    },
    /// The guest could not be set up, or the command could not be started. This is the last message.
    Failed(String),
}

impl Message {
    #[must_use]
    pub fn to_line(&self) -> String {
        // Serialization cannot fail, because the message contains only strings and numbers.
        let json =
            serde_json::to_string(self).unwrap_or_else(|error| unreachable!("a message serializes to JSON: {error}"));
        json + "\n"
    }

    pub fn parse(line: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_parse_as_documented() {
        let started = Message::Started { kernel: "6.12.1".to_owned() };
        assert_eq!(started.to_line(), "{\"started\":{\"kernel\":\"6.12.1\"}}\n");
        assert_eq!(Message::parse(b"{\"ended\":{\"code\":null}}\n").unwrap(), Message::Ended { code: None });
    }

    proptest! {
        #[test]
        fn a_line_of_output_survives_a_round_trip(text: String) {
            let line = Message::Output(text.clone()).to_line();
            prop_assert_eq!(line.matches('\n').count(), 1);
            prop_assert_eq!(Message::parse(line.as_bytes()).unwrap(), Message::Output(text));
        }
    }
}
