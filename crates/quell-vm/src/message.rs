//! What a guest says to its host: one JSON value a line, over a serial port of their own. What the kernel prints goes
//! to another port and is never parsed.

use serde::{Deserialize, Serialize};

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Message {
    /// The guest's first process has mounted, loaded and is about to start the command.
    Started {
        /// The release of the running kernel, like `6.12.107+deb13-cloud-amd64`.
        kernel: String,
    },
    /// A line that the command wrote to its standard output.
    Output(String),
    /// A line that the command wrote to its standard error.
    Diagnostic(String),
    /// The command has ended; the last message.
    Ended {
        /// Its exit code; absent when a signal ended it.
        code: Option<i32>,
    },
    /// The guest could not be set up, or the command not be started; the last message.
    Failed(String),
}

impl Message {
    /// The message as a line, with its end.
    #[must_use]
    pub fn to_line(&self) -> String {
        // Strings, numbers and names of fields always become JSON.
        let json = serde_json::to_string(self).unwrap_or_else(|error| unreachable!("a message is JSON: {error}"));
        json + "\n"
    }

    /// The message in a line.
    ///
    /// # Errors
    /// When the line holds none.
    pub fn parse(line: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_read_as_they_are_documented() {
        let started = Message::Started { kernel: "6.12.1".to_owned() };
        assert_eq!(started.to_line(), "{\"started\":{\"kernel\":\"6.12.1\"}}\n");
        assert_eq!(Message::parse(b"{\"ended\":{\"code\":null}}\n").unwrap(), Message::Ended { code: None });
    }

    proptest! {
        #[test]
        fn a_line_of_output_survives_the_way(text: String) {
            let line = Message::Output(text.clone()).to_line();
            prop_assert_eq!(line.matches('\n').count(), 1);
            prop_assert_eq!(Message::parse(line.as_bytes()).unwrap(), Message::Output(text));
        }
    }
}
