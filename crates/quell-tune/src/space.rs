//! The grid of modes and values that a search may try.

use quell_mode::DeliveryMode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A mode that the subject does not support.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RefusedMode {
    /// Name of the kind, without values: `suspend`, `threadedbusy`.
    pub kind: String,
    /// Why it is not tried.
    pub reason: String,
}

/// Modes and values that a search may try. Values of `gro-flush-timeout` are steps of factor 2 from 5 µs to 1.28 ms.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TuneSpace {
    /// Kinds of mode that are left out.
    pub refused: Vec<RefusedMode>,
}

/// A kind of mode. The first axis is N of the name; other axes are overrides, with the default first.
struct Family {
    word: &'static str,
    axes: &'static [&'static [&'static str]],
}

const TIMEOUTS_US: &[&str] = &["5", "10", "20", "40", "80", "160", "320", "640", "1280"];
const DEFER_HARD_IRQS: &[&str] = &["", ",defer-hard-irqs=10"];
const BUDGET: &[&str] = &["", ",busy-poll-budget=8"];

const FAMILIES: &[Family] = &[
    Family { word: "defer", axes: &[TIMEOUTS_US, DEFER_HARD_IRQS] },
    Family { word: "suspend", axes: &[TIMEOUTS_US, DEFER_HARD_IRQS, BUDGET, &["", ",irq-suspend-timeout=5ms"]] },
    Family {
        word: "napibusy",
        axes: &[
            &[""],
            &[",busy-poll-usecs=16", ",busy-poll-usecs=32", "", ",busy-poll-usecs=128", ",busy-poll-usecs=256"],
            &[",gro-flush-timeout=50us", "", ",gro-flush-timeout=800us"],
            BUDGET,
        ],
    },
    Family { word: "fullbusy", axes: &[&[""], BUDGET] },
    Family { word: "threaded", axes: &[&[""]] },
    Family { word: "threadedbusy", axes: &[&[""]] },
    Family { word: "userbusy", axes: &[&[""]] },
    Family { word: "eventspin", axes: &[&["10", "20", "40", "80", "160"]] },
];

/// What an override changes, relative to a step of a timeout: in the model, modes that differ by one agree to 2 or 3 %.
const OVERRIDE_STEP: f64 = 0.15;

/// A point of the grid: the index of its family, and one index per axis.
type GridPoint = (usize, Vec<usize>);

impl TuneSpace {
    /// Whether modes of a kind are left out.
    #[must_use]
    pub fn refuses(&self, kind: &str) -> bool {
        self.refused.iter().any(|refused| refused.kind == kind)
    }

    fn points(&self) -> Vec<(GridPoint, DeliveryMode)> {
        let mut points = Vec::new();
        for (at, family) in FAMILIES.iter().enumerate() {
            if self.refuses(family.word) {
                continue;
            }
            let mut all: Vec<Vec<usize>> = vec![Vec::new()];
            for axis in family.axes {
                let longer = |point: Vec<usize>| (0..axis.len()).map(move |index| [&point[..], &[index]].concat());
                all = all.into_iter().flat_map(longer).collect();
            }
            for point in all {
                let values = point.iter().zip(family.axes).map(|(index, axis)| axis[*index]);
                let text = std::iter::once(family.word).chain(values).collect::<String>();
                // A combination that contradicts itself is not a mode.
                if let Ok(mode) = text.parse() {
                    points.push(((at, point), mode));
                }
            }
        }
        points
    }

    /// All modes of the grid, with `base` first.
    #[must_use]
    pub fn all(&self) -> Vec<DeliveryMode> {
        std::iter::once(DeliveryMode::default()).chain(self.points().into_iter().map(|(_, mode)| mode)).collect()
    }

    /// Modes with which a search begins: `base`, and each kind with every second value and default overrides.
    #[must_use]
    pub fn coarse(&self) -> Vec<DeliveryMode> {
        let is_coarse = |(family, point): &GridPoint| {
            let axes = FAMILIES[*family].axes;
            let is_default = |(index, axis): (&usize, &&[&str])| axis[*index].is_empty();
            let named = axes[0].len() == 1 || point[0] % 2 == 1;
            named && point.iter().zip(axes).skip(1).all(is_default)
        };
        let points = self.points().into_iter().filter(|(point, _)| is_coarse(point));
        std::iter::once(DeliveryMode::default()).chain(points.map(|(_, mode)| mode)).collect()
    }
}

impl TuneSpace {
    /// Modes of [`all`](Self::all) that differ from one of `modes` by one step of N, and have its overrides.
    #[must_use]
    pub fn neighbours(&self, modes: &[DeliveryMode]) -> Vec<DeliveryMode> {
        let points = self.points();
        let of = |mode: &DeliveryMode| points.iter().find(|(_, other)| other == mode).map(|(point, _)| point);
        let places: Vec<&GridPoint> = modes.iter().filter_map(of).collect();
        let is_neighbour = |(family, point): &GridPoint| {
            places.iter().any(|(other, at)| family == other && point[0].abs_diff(at[0]) == 1 && point[1..] == at[1..])
        };
        points.iter().filter(|(point, _)| is_neighbour(point)).map(|(_, mode)| *mode).collect()
    }
}

/// Place of a mode in the grid: its family, and its step on each axis.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GridPlace(GridPoint);

impl GridPlace {
    /// Places of modes, in the same order. `None` for modes outside the grid.
    pub(crate) fn of(modes: &[DeliveryMode]) -> Vec<Option<Self>> {
        let points = TuneSpace::default().points();
        let place =
            |mode: &DeliveryMode| points.iter().find(|(_, other)| other == mode).map(|(point, _)| point.clone());
        modes.iter().map(|mode| place(mode).map(Self)).collect()
    }

    /// Distance of two modes of one family, in steps of a timeout. An override that is present or absent changes less.
    pub(crate) fn steps_to(&self, other: &Self) -> Option<f64> {
        let (Self((family, from)), Self((of, to))) = (self, other);
        let axes = FAMILIES[*family].axes;
        let step = |axis: &[&str]| if axis.len() == 2 { OVERRIDE_STEP } else { 1.0 };
        let steps = axes.iter().zip(from).zip(to).map(|((axis, a), b)| step(axis) * a.abs_diff(*b) as f64);
        (family == of).then(|| steps.sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_occurs_once_and_refused_kinds_do_not_occur() {
        let all = TuneSpace::default().all();
        assert!(all.iter().enumerate().all(|(at, mode)| !all[..at].contains(mode)));
        let refused = RefusedMode { kind: "threaded".to_owned(), reason: "not supported".to_owned() };
        let without = TuneSpace { refused: vec![refused] }.all();
        assert_eq!(without.len() + 1, all.len());
        assert!(without.iter().all(|mode| mode.to_string() != "threaded"));
    }

    #[test]
    fn neighbours_differ_by_one_step_and_have_the_same_overrides() {
        let names = |modes: &[&str]| {
            let modes: Vec<DeliveryMode> = modes.iter().map(|mode| mode.parse().unwrap()).collect();
            TuneSpace::default().neighbours(&modes).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(names(&["suspend5"]), ["suspend10"]);
        assert_eq!(names(&["defer10", "defer40"]), ["defer5", "defer20", "defer80"]);
        assert_eq!(names(&["base", "suspend123", "fullbusy"]), [""; 0]);
    }

    #[test]
    fn steps_are_counted_within_a_kind_only() {
        let modes = ["suspend20", "suspend80,busy-poll-budget=8", "defer20", "base"].map(|mode| mode.parse().unwrap());
        let places = GridPlace::of(&modes);
        let steps = |a: usize, b: usize| places[a].as_ref()?.steps_to(places[b].as_ref()?);
        assert_eq!([steps(0, 1), steps(0, 2), steps(0, 3)], [Some(2.0 + OVERRIDE_STEP), None, None]);
    }
}
