//! The trait of all documents, and reading a document whose kind is not known.

use quell_linux::visible;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A document that Quell writes as JSON and reads back.
pub trait Document: Serialize + DeserializeOwned + JsonSchema {
    /// Value of its field `schema`: `quell-NAME/VERSION`.
    const SCHEMA: &'static str;

    /// Parses the JSON. Documents that are a sequence of lines have their own implementation.
    fn from_json(text: &str) -> serde_json::Result<Self> {
        serde_json::from_str(text)
    }
}

#[derive(Debug, Clone, Copy)]
pub struct DocumentKind {
    pub schema: &'static str,
    pub json_schema: fn() -> schemars::Schema,
}

impl DocumentKind {
    pub(crate) const fn of<D: Document>() -> Self {
        Self { schema: D::SCHEMA, json_schema: || schemars::schema_for!(D) }
    }

    /// Name of the kind: `tune` for `quell-tune/1`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        let name = self.schema.strip_prefix("quell-").unwrap_or(self.schema);
        name.split_once('/').map_or(name, |(name, _)| name)
    }
}

/// Why a text is no document that this version reads. The messages are one line without control characters.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DocumentError {
    /// The text is not JSON.
    #[error("not valid JSON: {}", visible::name(&.0.to_string()))]
    NotJson(serde_json::Error),
    #[error(
        "{}; `quell results schema` lists the kinds that this version reads",
        found.as_ref().map_or_else(|| "no field \"schema\"".to_owned(), |found| format!("unknown schema \"{}\"", visible::name(found)))
    )]
    Schema { found: Option<String> },
    #[error("not a valid {schema}: {}", visible::name(&source.to_string()))]
    Malformed { schema: &'static str, source: serde_json::Error },
}

/// The field by which documents are recognised. It stands first in the documents that Quell writes.
#[derive(Deserialize)]
struct Head {
    schema: Option<String>,
}

/// Returns the field `schema` of the first JSON value in the text.
pub(crate) fn schema_of(text: &str) -> Result<Option<String>, DocumentError> {
    let mut values = serde_json::Deserializer::from_str(text);
    Ok(Head::deserialize(&mut values).map_err(DocumentError::NotJson)?.schema)
}

/// Parses a first line, and the others. A last line without its end was written in part.
pub(crate) fn header_and_lines<H: DeserializeOwned, L: DeserializeOwned>(
    text: &str,
) -> serde_json::Result<(H, Vec<L>)> {
    let mut lines = text.split_inclusive('\n');
    let header = serde_json::from_str(lines.next().unwrap_or_default())?;
    let others = lines.filter(|line| line.ends_with('\n')).map(serde_json::from_str);
    Ok((header, others.collect::<serde_json::Result<_>>()?))
}

/// Declares [`ResultDocument`](crate::ResultDocument), one variant for each kind of document.
macro_rules! documents {
    ($($(#[$about:meta])* $kind:ident($type:ty)),+ $(,)?) => {
        /// A document of any kind.
        #[derive(Debug, Clone, PartialEq, serde::Serialize)]
        #[serde(untagged)]
        pub enum ResultDocument {
            $($(#[$about])* $kind(Box<$type>)),+
        }

        impl ResultDocument {
            /// Every kind of document.
            pub const KINDS: &[DocumentKind] = &[$(DocumentKind::of::<$type>()),+];

            /// Parses a document. Line ends within its strings are escaped, because names in a document of another host
            /// are printed.
            pub fn parse(text: &str) -> Result<Self, DocumentError> {
                let text = &*quell_linux::visible::json_of_others(text);
                let found = document::schema_of(text)?;
                $(if found.as_deref() == Some(<$type as Document>::SCHEMA) {
                    let schema = <$type as Document>::SCHEMA;
                    let document = <$type as Document>::from_json(text);
                    return match document {
                        Ok(document) => Ok(Self::$kind(Box::new(document))),
                        Err(source) => Err(DocumentError::Malformed { schema, source }),
                    };
                })+
                Err(DocumentError::Schema { found })
            }

            /// Kind of the document.
            #[must_use]
            pub fn kind(&self) -> DocumentKind {
                match self {
                    $(Self::$kind(_) => DocumentKind::of::<$type>()),+
                }
            }
        }
    };
}

pub(crate) use documents;
