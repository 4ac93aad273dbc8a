//! Results as text: tables and sentences.

pub(crate) mod ablation_table;
pub(crate) mod comparison;
pub(crate) mod fit_report;
