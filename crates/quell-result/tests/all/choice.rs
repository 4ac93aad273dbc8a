//! Which of several modes that pay is to be used.

use crate::conclusions::{concluded, used};

/// The mode to use, if `base` has 10 µs of CPU time per request and 1 interrupt.
fn chosen(modes: &[(&str, f64, f64)]) -> String {
    used(&concluded(modes, 0.001)).unwrap()
}

#[test]
fn of_modes_that_save_the_same_quantities_the_one_that_saves_most_is_to_be_used() {
    assert_eq!(chosen(&[("defer200", 9.0, 0.9), ("suspend200", 4.0, 0.4)]), "suspend200");
    assert_eq!(chosen(&[("defer200", 4.0, 0.4), ("suspend200", 9.0, 0.9)]), "defer200");
}

#[test]
fn a_large_gain_outweighs_two_small_ones() {
    assert_eq!(chosen(&[("defer200", 9.0, 0.9), ("suspend200", 10.0, 0.2)]), "suspend200");
}

#[test]
fn a_less_invasive_mode_that_saves_about_as_much_is_to_be_used() {
    assert_eq!(chosen(&[("defer200", 5.2, 0.52), ("suspend200", 5.0, 0.5)]), "defer200");
}

#[test]
fn a_cost_weighs_twice_as_much_as_a_gain() {
    assert_eq!(chosen(&[("defer200", 10.0, 0.7), ("napibusy", 11.6, 0.5)]), "defer200");
}
