//! The slices as the experiment saw them, in time: one strip for each mode.

use std::collections::BTreeSet;

use quell_cli::number::short;
use quell_experiment::{Criterion, SliceFlag, SliceObservation, disturbed_blocks};
use svg::node::element::Group;

use super::loads::cell;
use super::{
    Chart, Grid, Scale, WIDTH, axis_name, below_axis, dot, image, label, line, names_width, rectangle, shown, text,
    tick,
};
use crate::palette::ModeStyle;
use crate::part::{Part, slice_value, unit, with_unit};
use crate::words;

const STRIP: f64 = 40.0;
const RIGHT: f64 = WIDTH - 62.0;
const HEAD: f64 = 6.0;

/// Draws the value of a criterion in every slice of a part. `None` without values.
pub(crate) fn chart(part: &Part<'_>, criterion: &Criterion, styles: &[ModeStyle]) -> Option<Chart> {
    let record = &part.experiment.record;
    let value = |slice: &SliceObservation| slice_value(slice, criterion);
    let values = || record.slices.iter().filter_map(|slice| value(&slice.observation));
    let scale = Scale::over(values(), STRIP - 5.0, 5.0)?;
    let mut spent_ms = 0.0;
    let times: Vec<(f64, f64)> = record
        .slices
        .iter()
        .map(|slice| {
            let from = spent_ms;
            spent_ms += slice.observation.spent_ms.max(0.0);
            (from / 1e3, spent_ms / 1e3)
        })
        .collect();
    let has_slices = |style: &&ModeStyle| {
        let arms = part.experiment.arms_of(&style.name);
        record.slices.iter().any(|slice| arms.contains(&slice.arm))
    };
    let strips: Vec<&ModeStyle> = styles.iter().filter(has_slices).collect();
    let left = 16.0 + names_width(strips.iter().map(|style| style.name.as_str()));
    let x = Scale::from_zero(spent_ms / 1e3, left, RIGHT);
    let bottom = HEAD + STRIP * strips.len() as f64;
    let left_out: BTreeSet<u32> = disturbed_blocks(record).into_iter().collect();
    let mut marks = Group::new();
    for (slice, (from, to)) in record.slices.iter().zip(&times).filter(|(slice, _)| left_out.contains(&slice.block)) {
        let _ = slice;
        marks = marks.add(rectangle((x.at(*from), HEAD), (x.at(*to), bottom), "noise"));
    }
    let name = words::criterion(criterion);
    let mut has_flags = false;
    for (index, style) in strips.iter().enumerate() {
        let top = HEAD + STRIP * index as f64;
        let arms = part.experiment.arms_of(&style.name);
        let typical = part.value(&style.name, criterion);
        marks = marks
            .add(line((left, top), (RIGHT, top), "grid"))
            .add(text(8.0, top + STRIP / 2.0 + 4.0, &label(&style.name), ""))
            .add(text(RIGHT + 8.0, top + STRIP / 2.0 + 4.0, &cell(typical), ""));
        let mut group = Group::new().set("class", style.classes());
        for (slice, (from, to)) in record.slices.iter().zip(&times).filter(|(slice, _)| arms.contains(&slice.arm)) {
            let Some(measured) = value(&slice.observation) else { continue };
            let flags = flags(&slice.observation);
            has_flags |= !flags.is_empty();
            let centre = (x.at((from + to) / 2.0), top + scale.at(measured));
            let mut said = format!("block {}: {name} {}", slice.block, with_unit(measured, criterion));
            flags.iter().for_each(|flag| said += &format!(", {flag}"));
            if !flags.is_empty() {
                group = group.add(dot(centre, 4.5, "ring", &said));
            }
            group = group.add(dot(centre, 2.5, "dot", &said));
        }
        marks = marks.add(group);
    }
    marks = marks.add(line((left, bottom), (RIGHT, bottom), "axis"));
    for value in x.ticks(5) {
        marks = marks.add(below_axis(x.at(value), bottom, &tick(value)));
    }
    marks = marks.add(axis_name((left + RIGHT) / 2.0, bottom, "seconds of the experiment"));
    let (min, max) = scale.ends();
    let mut note = format!("Each strip is from {} to {}, {}.", short(min), with_unit(max, criterion), scale.word());
    if !left_out.is_empty() {
        note += " Grey: blocks that other programs disturbed, which are left out.";
    }
    if has_flags {
        note += " Ringed: slices in which the server fell behind, requests failed, the load was late, or other programs \
                 used the CPUs; the table says which.";
    }
    Some(Chart {
        title: part.heading.clone(),
        unit: format!("{name} {} in each slice", unit(criterion)).replace("  ", " "),
        note: Some(note),
        svg: image(bottom + 38.0, marks),
        table: table(part, criterion, &strips, &left_out),
    })
}

/// A row for each block. A mode that has two slices in a block has both.
fn table(part: &Part<'_>, criterion: &Criterion, strips: &[&ModeStyle], left_out: &BTreeSet<u32>) -> Grid {
    let record = &part.experiment.record;
    let mut grid = Grid::new(
        std::iter::once("block".to_owned())
            .chain(strips.iter().map(|style| shown(&style.name)))
            .chain(["remarks".to_owned()]),
    );
    let arms: Vec<Vec<usize>> = strips.iter().map(|style| part.experiment.arms_of(&style.name)).collect();
    for block in record.slices.chunk_by(|one, other| one.block == other.block) {
        let of_mode = |arms: &Vec<usize>| {
            let values = block.iter().filter(|slice| arms.contains(&slice.arm));
            values.map(|slice| cell(slice_value(&slice.observation, criterion))).collect::<Vec<_>>().join(", ")
        };
        let number = block.first().map_or(0, |slice| slice.block);
        let flagged: BTreeSet<&str> = block.iter().flat_map(|slice| flags(&slice.observation)).collect();
        let out = left_out.contains(&number).then_some("left out");
        let remarks: Vec<&str> = out.into_iter().chain(flagged).collect();
        let cells = std::iter::once(number.to_string()).chain(arms.iter().map(of_mode));
        grid.rows.push(cells.chain([remarks.join(", ")]).collect());
    }
    grid
}

fn flags(slice: &SliceObservation) -> Vec<&'static str> {
    let word = |flag: &SliceFlag| match flag {
        SliceFlag::Saturated => "fell behind",
        SliceFlag::RequestsFailed => "requests failed",
        SliceFlag::LoadWasLate => "load was late",
        SliceFlag::ForeignCpu => "other programs",
        SliceFlag::NoIdleCpu => "no idle CPU",
    };
    slice.flags.iter().map(word).collect()
}
