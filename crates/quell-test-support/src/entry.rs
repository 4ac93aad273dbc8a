//! Entry points of other processes in a test binary.

/// Arguments that make this test binary run one of its ignored tests, which is the entry point of another process.
pub fn entry<F: Fn()>(_entry: F) -> [String; 4] {
    let (_, test) = std::any::type_name::<F>().split_once("::").unwrap();
    ["--ignored", "--exact", test, "--nocapture"].map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::entry;

    fn watchdog() {}

    #[test]
    fn an_entry_is_named_as_libtest_names_it() {
        assert_eq!(entry(watchdog)[2], "entry::tests::watchdog");
    }
}
