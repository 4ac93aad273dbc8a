//! Compiles C programs for the tests and runs them with and without the preload library.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use quell_launch::library::LIBRARY;
use quell_launch::preload_settings::ENVIRONMENT_VARIABLE;
use quell_test_support::{Lacks, skip};

/// Directory with the compiled programs of a test binary.
pub(crate) struct Programs(PathBuf);

/// A test program to run, with its settings.
pub(crate) struct Run<'a> {
    programs: &'a Programs,
    preloaded: Vec<&'static str>,
    settings: String,
    variables: Vec<(&'static str, &'static str)>,
}

/// Output that a program wrote.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Programs {
    /// Compiles the programs once. Returns `None` and prints the reason to stderr if there is no C compiler.
    pub(crate) fn compile() -> Option<&'static Self> {
        static COMPILED: LazyLock<Programs> = LazyLock::new(|| {
            let programs = Programs(Path::new(env!("CARGO_TARGET_TMPDIR")).join("preload-library"));
            std::fs::create_dir_all(&programs.0).unwrap();
            std::fs::write(programs.path("quell.so"), LIBRARY).unwrap();
            programs.cc("subject", &["-pthread"]);
            programs.cc("recorder", &["-shared", "-fPIC"]);
            programs.cc("runtime", &["-shared", "-fPIC"]);
            programs.cc("settings", &["-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"]);
            programs
        });
        if let Err(error) = Command::new("cc").arg("--version").output() {
            skip(Lacks::Tool("C compiler"), format_args!("could not run the C compiler: {error}"));
            return None;
        }
        Some(&COMPILED)
    }

    /// Path of a file in the test directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn cc(&self, name: &str, options: &[&str]) {
        let source =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/preload_library/c").join(name).with_extension("c");
        let options = options.iter().chain(&["-O2", "-Wall", "-Werror", "-o"]);
        let mut cc = Command::new("cc");
        let status = cc.args(options).arg(self.path(name)).arg(source).args(["-ldl", "-lrt"]).status().unwrap();
        assert!(status.success(), "{cc:?}");
    }

    /// Runs the program without the library.
    pub(crate) fn bare(&self) -> Run<'_> {
        Run { programs: self, preloaded: Vec::new(), settings: String::new(), variables: Vec::new() }
    }

    /// Runs the program with the library and these settings.
    pub(crate) fn with(&self, settings: &str) -> Run<'_> {
        Run { preloaded: vec!["quell.so"], settings: settings.to_owned(), ..self.bare() }
    }
}

impl Run<'_> {
    /// Preloads another library after the existing ones.
    pub(crate) fn and(mut self, library: &'static str) -> Self {
        self.preloaded.push(library);
        self
    }

    pub(crate) fn variable(mut self, name: &'static str, value: &'static str) -> Self {
        self.variables.push((name, value));
        self
    }

    /// Runs the test program to its end, as the command of `wrapper`.
    pub(crate) fn wrapped(&self, wrapper: &[&str], arguments: &[&str]) -> Written {
        let subject = self.programs.path("subject");
        let mut words = wrapper.iter().copied().chain([subject.to_str().unwrap()]).chain(arguments.iter().copied());
        let mut command = Command::new(words.next().unwrap());
        let preloaded = self.preloaded.iter().map(|name| self.programs.path(name).display().to_string());
        command.args(words).env("LD_PRELOAD", preloaded.collect::<Vec<_>>().join(":"));
        command.env(ENVIRONMENT_VARIABLE, &self.settings).envs(self.variables.iter().copied());
        let output = command.output().unwrap();
        let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
        Written { out, err }
    }

    /// Runs the test program to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Written {
        self.wrapped(&[], arguments)
    }
}
