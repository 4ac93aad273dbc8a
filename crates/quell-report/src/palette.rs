//! Colours: one accent for each kind of mode, with the same meaning in pictures, reports and `quell top`. They follow
//! Okabe and Ito's palette, darkened on white and lightened on black until text in them can be read.

use quell_mode::{DeliveryMode, ModeKind};

/// Accent of a kind of mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accent {
    /// Name of the kind without N.
    pub kind: &'static str,
    /// Red, green and blue on a light background.
    pub light: (u8, u8, u8),
    /// Red, green and blue on a dark background.
    pub dark: (u8, u8, u8),
    /// The nearest of the 256 colours of a terminal that is legible on both.
    pub terminal: u8,
}

/// Accents of all kinds.
pub const ACCENTS: [Accent; 10] = [
    Accent { kind: "base", light: (110, 116, 124), dark: (150, 156, 164), terminal: 245 },
    Accent { kind: "defer", light: (190, 80, 0), dark: (240, 140, 50), terminal: 172 },
    Accent { kind: "napibusy", light: (0, 130, 95), dark: (40, 205, 165), terminal: 36 },
    Accent { kind: "fullbusy", light: (135, 20, 95), dark: (250, 165, 215), terminal: 169 },
    Accent { kind: "suspend", light: (0, 105, 180), dark: (90, 170, 240), terminal: 33 },
    Accent { kind: "threaded", light: (122, 104, 0), dark: (235, 218, 90), terminal: 142 },
    Accent { kind: "threadedbusy", light: (128, 84, 56), dark: (215, 175, 140), terminal: 137 },
    Accent { kind: "sockpoll", light: (0, 120, 140), dark: (92, 205, 222), terminal: 37 },
    Accent { kind: "eventspin", light: (88, 76, 190), dark: (170, 165, 255), terminal: 99 },
    Accent { kind: "userbusy", light: (176, 42, 48), dark: (255, 135, 130), terminal: 167 },
];

/// Accent of a kind of mode.
#[must_use]
pub fn accent(kind: ModeKind) -> Accent {
    ACCENTS.into_iter().find(|accent| accent.kind == kind.word()).unwrap_or(ACCENTS[0])
}

/// How a mode is drawn: the colour of its kind, and a line of its own among modes of the same kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModeStyle {
    pub(crate) name: String,
    kind: ModeKind,
    /// Number of modes of the same kind before it.
    variant: usize,
}

impl ModeStyle {
    /// Styles of modes in their order, without duplicates.
    pub(crate) fn of_all<'a>(modes: impl Iterator<Item = (&'a str, DeliveryMode)>) -> Vec<Self> {
        let mut styles: Vec<Self> = Vec::new();
        for (name, mode) in modes {
            if styles.iter().all(|style| style.name != name) {
                let kind = mode.kind();
                let variant = styles.iter().filter(|other| other.kind.word() == kind.word()).count();
                styles.push(Self { name: name.to_owned(), kind, variant });
            }
        }
        styles
    }

    /// The same colour with another line.
    pub(crate) fn varied(&self, name: String, variant: usize) -> Self {
        Self { name, kind: self.kind, variant }
    }

    /// Classes of its marks.
    pub(crate) fn classes(&self) -> String {
        format!("m-{} v{}", self.kind.word(), self.variant.min(VARIANTS - 1))
    }
}

/// Number of kinds of line.
const VARIANTS: usize = 4;

/// Style sheet of pictures: neutral colours and accents in both schemes, and the classes of marks.
#[must_use]
pub(crate) fn style_sheet() -> String {
    let of = |pick: fn(&Accent) -> (u8, u8, u8)| -> String {
        let property = |accent: &Accent| {
            let (red, green, blue) = pick(accent);
            format!("--{}:#{red:02x}{green:02x}{blue:02x};", accent.kind)
        };
        ACCENTS.iter().map(property).collect()
    };
    let classes: String = ACCENTS.iter().map(|accent| format!(".m-{0}{{--c:var(--{0})}}", accent.kind)).collect();
    let (light, dark) = (of(|accent| accent.light), of(|accent| accent.dark));
    format!(
        ":root{{color-scheme:light dark;{LIGHT}{light}}}\n@media (prefers-color-scheme:dark){{:root{{{DARK}{dark}}}}}\n\
         @media print{{:root{{color-scheme:light;{LIGHT}{light}}}}}\n{classes}\n{}",
        include_str!("../assets/chart.css")
    )
}

const LIGHT: &str =
    "--paper:#fff;--ink:#1b1f24;--muted:#57606a;--rule:#d4d9df;--grid:#e7eaee;--wash:#f5f6f8;--noise:#dfe3e8;";
const DARK: &str =
    "--paper:#14171b;--ink:#e8eaed;--muted:#a4adb8;--rule:#3a4049;--grid:#2a2f36;--wash:#1c2026;--noise:#343b44;";

#[cfg(test)]
mod tests {
    use super::*;

    fn linear((red, green, blue): (u8, u8, u8)) -> [f64; 3] {
        [red, green, blue].map(|part| {
            let part = f64::from(part) / 255.0;
            if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        })
    }

    fn contrast(one: (u8, u8, u8), other: (u8, u8, u8)) -> f64 {
        let luminance = |colour| {
            let [red, green, blue] = linear(colour);
            0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05
        };
        let ratio = luminance(one) / luminance(other);
        ratio.max(1.0 / ratio)
    }

    /// A colour as it is seen without green or red receptors (Machado, Oliveira, Fernandes 2009, severity 1), in CIELAB.
    fn seen(colour: (u8, u8, u8), matrix: [[f64; 3]; 3]) -> [f64; 3] {
        let rgb = linear(colour);
        let [red, green, blue] = matrix.map(|row| (0..3).map(|at| row[at] * rgb[at]).sum::<f64>().clamp(0.0, 1.0));
        let x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505;
        let y = 0.2126 * red + 0.7152 * green + 0.0722 * blue;
        let z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089;
        let [x, y, z] = [x, y, z].map(|part| if part > 0.008856 { part.cbrt() } else { 7.787 * part + 16.0 / 116.0 });
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    const NORMAL: [[f64; 3]; 3] = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]];
    const DEUTERANOPIA: [[f64; 3]; 3] =
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]];
    const PROTANOPIA: [[f64; 3]; 3] =
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]];

    #[test]
    fn every_kind_of_mode_has_an_accent_that_can_be_read_in_both_schemes() {
        for name in [
            "base",
            "defer20",
            "napibusy",
            "fullbusy",
            "suspend20",
            "threaded",
            "threadedbusy",
            "sockpoll50",
            "eventspin50",
            "userbusy",
        ] {
            let kind = name.parse::<DeliveryMode>().unwrap().kind();
            let accent = accent(kind);
            assert_eq!(accent.kind, kind.word());
            assert!(contrast(accent.light, (255, 255, 255)) >= 4.5, "{name} on white: {accent:?}");
            assert!(contrast(accent.dark, (0x14, 0x17, 0x1b)) >= 4.5, "{name} on black: {accent:?}");
        }
    }

    #[test]
    fn the_modes_that_are_compared_by_default_differ_for_the_colour_blind() {
        for matrix in [NORMAL, DEUTERANOPIA, PROTANOPIA] {
            for pick in [|accent: &Accent| accent.light, |accent: &Accent| accent.dark] {
                let seen: Vec<_> =
                    ACCENTS[..5].iter().map(|accent| (accent.kind, seen(pick(accent), matrix))).collect();
                for (at, (kind, one)) in seen.iter().enumerate() {
                    for (other_kind, other) in &seen[..at] {
                        let square: f64 = (0..3).map(|part| (one[part] - other[part]).powi(2)).sum();
                        assert!(square.sqrt() > 10.0, "{kind} and {other_kind} differ by {:.1}", square.sqrt());
                    }
                }
            }
        }
    }

    #[test]
    fn modes_of_one_kind_have_one_colour_and_different_lines() {
        let modes = ["base", "suspend20", "suspend200", "base"].map(|name| (name, name.parse().unwrap()));
        let classes: Vec<_> = ModeStyle::of_all(modes.into_iter()).iter().map(ModeStyle::classes).collect();
        assert_eq!(classes, ["m-base v0", "m-suspend v0", "m-suspend v1"]);
    }
}
