//! Joins screens of a terminal (`tmux capture-pane -e`) to one moving SVG: `recording OUT.svg SCREEN...`, a second for each.
//! `tools/record-top` uses it for the picture of `quell top` in the README.

use std::error::Error;
use std::fmt::Write as _;

use anstyle_svg::Term;

const COLUMNS: usize = 112;
/// Width of a character of the font that `anstyle_svg` sets, in pixels.
const COLUMN_PX: f64 = 8.4;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let out = arguments.next().ok_or("usage: recording OUT.svg SCREEN...")?;
    let screens: Vec<String> = arguments.map(std::fs::read_to_string).collect::<Result<_, _>>()?;
    let rows = screens.iter().map(|screen| screen.trim_end().lines().count()).max().ok_or("no screen")?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a thousand pixels")]
    let width_px = (COLUMNS as f64 * COLUMN_PX) as usize;
    let seconds = screens.len();
    let mut frames = String::new();
    for (second, screen) in screens.iter().enumerate() {
        let lines = screen.trim_end();
        let missing = rows - lines.lines().count();
        let frame = Term::new().min_width_px(width_px).render_svg(&format!("{lines}{}", "\n".repeat(missing)));
        write!(frames, "<g class=\"screen\" style=\"animation-delay:-{}s\">{frame}</g>", seconds - second)?;
    }
    // Whoever shows no movement sees the last screen, which is drawn over the others.
    let shown = 100.0 / seconds as f64;
    let style = format!(
        "@keyframes show {{ 0% {{ visibility: visible }} {shown}% {{ visibility: hidden }} }} \
         @media (prefers-reduced-motion: no-preference) {{ .screen {{ animation: show {seconds}s step-end infinite }} }}"
    );
    let height_px = rows * 18 + 20;
    let view_width_px = width_px + 20;
    std::fs::write(
        out,
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {view_width_px} {height_px}\" role=\"img\" \
             aria-label=\"quell top while a mode is attached\"><style>{style}</style>{frames}</svg>\n"
        ),
    )?;
    Ok(())
}
