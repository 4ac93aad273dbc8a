//! The state machine of a switchback experiment. It selects the next slice and decides when to stop. It has no access
//! to the subject or to a clock.

use std::collections::{BTreeMap, VecDeque};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::analysis::{Looks, SwitchbackAnalysis};
use crate::design::{CONTROL, DesignError, ExperimentDesign, MIN_BLOCKS, REFERENCE, Treatment};
use crate::driver::{Designer, SliceOrder};
use crate::observation::{InvalidObservation, SliceObservation, SliceRecord};

/// The data that determine all results of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ExperimentRecord<S> {
    /// Design of the experiment.
    pub design: ExperimentDesign<S>,
    /// Slices in the order in which they were observed.
    pub slices: Vec<SliceRecord>,
    /// Treatments that could not be set, by arm, with the reason.
    pub dropped: BTreeMap<usize, String>,
}

impl<S> ExperimentRecord<S> {
    /// Values of a metric in the slices of an arm, in order. A value is `None` if it is absent.
    pub fn values<'a>(&'a self, arm: usize, metric: &'a str) -> impl Iterator<Item = Option<f64>> + 'a {
        self.of_arm(arm).map(move |slice| slice.metric(metric))
    }

    /// Observations of an arm, in order.
    pub fn of_arm(&self, arm: usize) -> impl Iterator<Item = &SliceObservation> {
        self.slices.iter().filter(move |slice| slice.arm == arm).map(|slice| &slice.observation)
    }

    /// Whether a treatment of this name could not be set.
    #[must_use]
    pub fn has_dropped(&self, name: &str) -> bool {
        let is_it = |&arm: &usize| self.design.treatment(arm).is_some_and(|treatment| treatment.name == name);
        self.dropped.keys().any(is_it)
    }

    /// Mean time of a slice, with setting and settling, in milliseconds. 0 without slices.
    #[must_use]
    pub fn slice_takes_ms(&self) -> f64 {
        let spent_ms: f64 = self.slices.iter().map(|slice| slice.observation.spent_ms).sum();
        spent_ms / self.slices.len().max(1) as f64
    }

    /// Time that was spent until the end of each complete block, in milliseconds.
    pub(crate) fn spent_ms_after_each_block(&self) -> Vec<f64> {
        let mut spent_ms = 0.0;
        let mut blocks = Vec::new();
        for (at, slice) in self.slices.iter().enumerate() {
            spent_ms += slice.observation.spent_ms;
            let is_last = self.slices.get(at + 1).is_none_or(|next| next.block != slice.block);
            if is_last && self.is_complete(slice.block, at) {
                blocks.push(spent_ms);
            }
        }
        blocks
    }

    /// Whether the block whose last slice is at the index `last` has a slice of every arm that was not dropped.
    fn is_complete(&self, block: u32, last: usize) -> bool {
        let has = |arm: usize| {
            self.slices[..=last].iter().rev().take_while(|slice| slice.block == block).any(|slice| slice.arm == arm)
        };
        (0..self.design.arms()).all(|arm| self.dropped.contains_key(&arm) || has(arm))
    }
}

/// A switchback experiment in progress.
#[derive(Debug, Clone)]
pub struct Switchback<S> {
    record: ExperimentRecord<S>,
    /// Number of the current block.
    block: u32,
    /// Arms of the current block that have no slice yet.
    queue: VecDeque<usize>,
    spent_ms: f64,
    looks: Looks,
    stopped: Option<StopReason>,
}

/// The slice that must be observed next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NextSlice<'a, S> {
    /// Number of the block, from 0.
    pub block: u32,
    /// Number of the arm. 0 is the reference, and 1 is its control.
    pub arm: usize,
    /// Treatment that must be set.
    pub treatment: &'a Treatment<S>,
}

/// Why an experiment has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StopReason {
    /// Every contrast has a verdict.
    AllDecided,
    /// No further block fits the budget.
    BudgetSpent,
    /// No treatment could be set.
    NoTreatmentLeft,
}

impl<S> Switchback<S> {
    /// Starts an experiment.
    pub fn new(design: ExperimentDesign<S>) -> Result<Self, DesignError> {
        design.check()?;
        Ok(Self {
            block: 0,
            queue: design.order(0).into(),
            spent_ms: 0.0,
            looks: Looks::new(&design),
            stopped: None,
            record: ExperimentRecord { design, slices: Vec::new(), dropped: BTreeMap::new() },
        })
    }

    /// The next slice. `None` if the experiment has ended.
    #[must_use]
    pub fn next_slice(&self) -> Option<NextSlice<'_, S>> {
        let arm = *self.queue.front().filter(|_| self.stopped.is_none())?;
        Some(NextSlice { block: self.block, arm, treatment: self.record.design.treatment(arm)? })
    }

    /// Records the observation of the next slice. Fails if a value is below 0, infinite or not a number. The slice then
    /// remains the next one.
    pub fn record(&mut self, observation: SliceObservation) -> Result<(), InvalidObservation> {
        observation.check()?;
        if self.stopped.is_some() {
            return Ok(());
        }
        let Some(arm) = self.queue.pop_front() else { return Ok(()) };
        self.spent_ms += observation.spent_ms;
        self.record.slices.push(SliceRecord { block: self.block, arm, observation });
        self.end_block_if_complete();
        Ok(())
    }

    /// Drops the next slice's treatment for the rest of the experiment, because it could not be set. Its contrasts get
    /// no verdict. Returns whether it was dropped; the reference cannot be dropped.
    pub fn drop_treatment(&mut self, reason: String) -> bool {
        let Some(arm) = self.queue.front().copied().filter(|arm| ![REFERENCE, CONTROL].contains(arm)) else {
            return false;
        };
        self.record.dropped.insert(arm, reason);
        self.queue.pop_front();
        if self.record.has_dropped_every_treatment() {
            self.stopped = Some(StopReason::NoTreatmentLeft);
        }
        self.end_block_if_complete();
        true
    }

    /// Ends the experiment and drops the slices of the incomplete block, if there are enough blocks for a verdict.
    fn end_after_last_block(&mut self) -> bool {
        let is_enough = self.block >= MIN_BLOCKS;
        if is_enough {
            self.record.slices.retain(|slice| slice.block < self.block);
            self.stopped = Some(StopReason::BudgetSpent);
        }
        is_enough
    }

    /// Why the experiment has ended. `None` while it continues.
    #[must_use]
    pub fn stopped(&self) -> Option<StopReason> {
        self.stopped
    }

    /// Share of the budget that is spent, from 0 to 1.
    #[must_use]
    pub fn spent(&self) -> f64 {
        (self.spent_ms / self.record.design.budget_ms as f64).min(1.0)
    }

    /// The design and all slices so far.
    #[must_use]
    pub fn so_far(&self) -> &ExperimentRecord<S> {
        &self.record
    }

    /// Ends the experiment, and returns its record and results. If the experiment has not stopped by itself, the
    /// analysis uses the available slices.
    #[must_use]
    pub fn finish(self) -> (ExperimentRecord<S>, SwitchbackAnalysis) {
        let spent = self.record.spent_ms_after_each_block();
        let analysis = self.looks.finish(&self.record, spent.len() as u32, spent.last().copied().unwrap_or(0.0));
        (self.record, analysis)
    }

    fn end_block_if_complete(&mut self) {
        if !self.queue.is_empty() || self.stopped.is_some() {
            return;
        }
        self.block += 1;
        if let Some(time) = self.looks.due(&self.record.design, self.block, self.spent_ms) {
            self.looks.look(&self.record, self.block, time);
            if self.looks.all_decided(&self.record) {
                self.stopped = Some(StopReason::AllDecided);
            } else if time >= 1.0 {
                self.stopped = Some(StopReason::BudgetSpent);
            }
        }
        let order = self.record.design.order(self.block);
        self.queue = order.into_iter().filter(|arm| !self.record.dropped.contains_key(arm)).collect();
    }
}

impl<S: Clone + PartialEq> Designer for Switchback<S> {
    type Setting = S;

    fn next(&self) -> Option<SliceOrder<S>> {
        let ExperimentDesign { reference, settle_ms, slice_ms, .. } = &self.record.design;
        let setting = self.next_slice()?.treatment.setting.clone();
        let reference = reference.setting.clone();
        Some(SliceOrder { setting, load: 0, reference, settle_ms: *settle_ms, slice_ms: *slice_ms })
    }

    fn record(&mut self, observation: SliceObservation) -> Result<(), InvalidObservation> {
        self.record(observation)
    }

    fn not_settable(&mut self, reason: String) -> bool {
        self.drop_treatment(reason)
    }

    fn end_by_budget(&mut self) -> bool {
        self.end_after_last_block()
    }
}
