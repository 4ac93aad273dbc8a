//! The program to start: its file, and whether the preload library can reach it. The check uses only the file, before
//! the start. It does not cover programs that this program executes later.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use object::Endianness;
use object::elf::{FileHeader32, FileHeader64};
use object::read::ReadCache;
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use quell_linux::executable::gains_privileges;
use quell_linux::visible;
use tracing::info;

use crate::library::LIBRARY;

/// Maximum depth of nested interpreters, as in the kernel (`exec_binprm` in `fs/exec.c`).
const INTERPRETERS_MAX: usize = 5;
/// Maximum length of a script's first line in bytes (`BINPRM_BUF_SIZE`).
const SCRIPT_LINE_MAX: u64 = 256;
const GLIBC_LINKER: &str = "ld-linux";
/// Sections that the Go linker writes. They remain after stripping.
const GO_SECTIONS: [&[u8]; 2] = [b".note.go.buildid", b".go.buildinfo"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchProgram {
    pub path: PathBuf,
    pub reach: Reach,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    Preload,
    /// Only from outside, through duplicates of the running program's file descriptors.
    FromOutside(NotPreloaded),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotPreloaded {
    #[error("it is statically linked")]
    Static,
    #[error("it is a Go program, which does not use libc for system calls")]
    Go,
    #[error("its dynamic linker is {0}, not glibc's")]
    OtherLinker(String),
    #[error("it is built for another architecture")]
    OtherMachine,
    /// The kernel cannot execute the file: it is empty, for example.
    #[error("it is no complete ELF file and no script")]
    NotExecutable,
    #[error("it is a script whose interpreters are scripts, {INTERPRETERS_MAX} or more (the kernel refuses: ELOOP)")]
    NestedScripts,
    #[error(
        "it changes privileges on execution (set-user-ID, set-group-ID or file capabilities), so that its dynamic \
             linker ignores preloaded libraries"
    )]
    Privileged,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchProgramError {
    #[error("`{0}` not found in PATH")]
    NotFound(String),
    #[error("{} is not executable: `chmod +x` it", visible::path(.0))]
    NotExecutable(PathBuf),
    /// The file cannot be read. Quell cannot check a file that is executable but not readable.
    #[error("reading {path}: {source}")]
    Unreadable { path: PathBuf, source: io::Error },
}

impl LaunchProgram {
    /// Finds a program by its path, or by its name in the directories of `search` (the value of `PATH`).
    pub fn find(name: &OsStr, search: &OsStr) -> Result<Self, LaunchProgramError> {
        let path =
            look_up(name, search).ok_or_else(|| LaunchProgramError::NotFound(name.to_string_lossy().into_owned()))?;
        if path.metadata().is_ok_and(|file| !is_executable(&file)) {
            return Err(LaunchProgramError::NotExecutable(path));
        }
        let reach = reach(&path, search)?;
        info!(path = visible::path(&path), ?reach, "program found");
        Ok(Self { path, reach })
    }
}

/// Searches for a program as `execvp(3)` does.
fn look_up(name: &OsStr, search: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(name.into());
    }
    let is_program = |path: &PathBuf| path.metadata().is_ok_and(|file| is_executable(&file));
    std::env::split_paths(search).map(|directory| directory.join(name)).find(is_program)
}

fn is_executable(file: &Metadata) -> bool {
    file.is_file() && file.permissions().mode() & 0o111 != 0
}

fn reach(path: &Path, search: &OsStr) -> Result<Reach, LaunchProgramError> {
    let unreadable = |path: &Path| {
        let path = path.to_owned();
        |source| LaunchProgramError::Unreadable { path, source }
    };
    let mut executed = path.to_owned();
    for _ in 0..INTERPRETERS_MAX {
        let mut file = File::open(&executed).map_err(unreadable(&executed))?;
        let Some(interpreter) = interpreter_of_script(&mut file, search).map_err(unreadable(&executed))? else {
            let privileged = gains_privileges(&executed).map_err(unreadable(&executed))?;
            return Ok(if privileged { Reach::FromOutside(NotPreloaded::Privileged) } else { reach_of_elf(file) });
        };
        executed = interpreter;
    }
    Ok(Reach::FromOutside(NotPreloaded::NestedScripts))
}

/// Interpreter from the first line of a script. If that is `env`, the program that `env` executes.
fn interpreter_of_script(file: &mut File, search: &OsStr) -> io::Result<Option<PathBuf>> {
    let mut begin = Vec::new();
    file.take(SCRIPT_LINE_MAX).read_to_end(&mut begin)?;
    let Some(line) = begin.strip_prefix(b"#!") else { return Ok(None) };
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).map(OsStr::from_bytes);
    let Some(interpreter) = words.next().map(PathBuf::from) else { return Ok(None) };
    if interpreter.file_name() == Some(OsStr::new("env")) {
        let named = words.find(|word| !word.as_bytes().starts_with(b"-"));
        return Ok(named.and_then(|name| look_up(name, search)).or(Some(interpreter)));
    }
    Ok(Some(interpreter))
}

fn reach_of_elf(file: File) -> Reach {
    let outside = Reach::FromOutside;
    let data = &ReadCache::new(file);
    let Ok(header) = FileHeader64::<Endianness>::parse(data) else {
        let is_32_bit = FileHeader32::<Endianness>::parse(data).is_ok();
        return outside(if is_32_bit { NotPreloaded::OtherMachine } else { NotPreloaded::NotExecutable });
    };
    let Ok(endian) = header.endian() else { return outside(NotPreloaded::OtherMachine) };
    if !is_for_the_librarys_machine(header, endian) {
        return outside(NotPreloaded::OtherMachine);
    }
    let segments = header.program_headers(endian, data).unwrap_or_default();
    let linker = segments.iter().find_map(|segment| segment.interpreter(endian, data).ok().flatten());
    let Some(linker) = linker else { return outside(NotPreloaded::Static) };
    if is_go(header, endian, data) {
        return outside(NotPreloaded::Go);
    }
    let linker = String::from_utf8_lossy(linker).into_owned();
    let is_glibcs = linker.rsplit('/').next().is_some_and(|name| name.starts_with(GLIBC_LINKER));
    if is_glibcs { Reach::Preload } else { outside(NotPreloaded::OtherLinker(linker)) }
}

fn is_for_the_librarys_machine(header: &FileHeader64<Endianness>, endian: Endianness) -> bool {
    let library = FileHeader64::<Endianness>::parse(LIBRARY).ok();
    library.is_some_and(|library| {
        library.endian().is_ok_and(|its| its == endian && library.e_machine(its) == header.e_machine(endian))
    })
}

fn is_go(header: &FileHeader64<Endianness>, endian: Endianness, data: &ReadCache<File>) -> bool {
    let Ok(sections) = header.sections(endian, data) else { return false };
    sections.iter().any(|section| sections.section_name(endian, section).is_ok_and(|name| GO_SECTIONS.contains(&name)))
}

#[cfg(test)]
mod tests {
    use quell_test_support::{Lacks, skip};
    use std::fs;
    use std::process::Command;

    use tempfile::TempDir;

    use super::*;

    fn found(name: impl AsRef<OsStr>) -> Reach {
        LaunchProgram::find(name.as_ref(), OsStr::new("/usr/bin:/bin")).unwrap().reach
    }

    fn file(directory: &TempDir, name: &str, content: &[u8]) -> PathBuf {
        let path = directory.path().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Compiles a C program. Returns `None` if there is no compiler, or it does not support the options.
    fn compiled(directory: &TempDir, options: &[&str]) -> Option<PathBuf> {
        let (source, program) =
            (file(directory, "main.c", b"int main(void) { return 0; }"), directory.path().join("main"));
        let output = Command::new("cc").arg(source).arg("-o").arg(&program).args(options).output();
        match output {
            Ok(output) if output.status.success() => Some(program),
            failed => {
                skip(Lacks::Tool("C compiler"), format_args!("cc {options:?}: {failed:?}"));
                None
            }
        }
    }

    #[test]
    fn a_program_of_the_distribution_and_a_script_for_it_are_reached() {
        assert_eq!(found("ls"), Reach::Preload);
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(found(file(&directory, "script", b"#!/bin/sh -e\nls\n")), Reach::Preload);
        assert_eq!(found(file(&directory, "by-env", b"#! /usr/bin/env -S sh -e\nls\n")), Reach::Preload);
    }

    #[test]
    fn a_static_program_is_not_reached() {
        let directory = tempfile::tempdir().unwrap();
        let Some(program) = compiled(&directory, &["-static"]) else { return };
        assert_eq!(found(program), Reach::FromOutside(NotPreloaded::Static));
    }

    #[test]
    fn a_program_with_another_linker_is_not_reached() {
        let directory = tempfile::tempdir().unwrap();
        let Some(program) = compiled(&directory, &["-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"]) else { return };
        let expected = NotPreloaded::OtherLinker("/lib/ld-musl-x86_64.so.1".to_owned());
        assert_eq!(found(program), Reach::FromOutside(expected));
    }

    #[test]
    fn a_go_program_is_not_reached_even_if_it_is_linked_dynamically() {
        let directory = tempfile::tempdir().unwrap();
        let source = b"package main\nimport \"C\"\nimport \"net\"\nfunc main() { net.Listen(\"tcp\", \":0\") }\n";
        let (source, program) = (file(&directory, "main.go", source), directory.path().join("go"));
        let mut go = Command::new("go");
        go.args(["build", "-o"]).arg(&program).arg(&source).env("CGO_ENABLED", "1").env("GOFLAGS", "-mod=mod");
        match go.current_dir(&directory).output() {
            Ok(output) if output.status.success() => assert_eq!(found(program), Reach::FromOutside(NotPreloaded::Go)),
            failed => skip(Lacks::Tool("Go"), format_args!("{go:?}: {failed:?}")),
        }
    }

    #[test]
    fn a_program_for_another_machine_is_not_reached() {
        let directory = tempfile::tempdir().unwrap();
        let mut other = LIBRARY.to_vec();
        other[18] ^= 0xff;
        assert_eq!(found(file(&directory, "other", &other)), Reach::FromOutside(NotPreloaded::OtherMachine));
        let mut bits_32 = LIBRARY.to_vec();
        bits_32[4] = object::elf::ELFCLASS32.0;
        assert_eq!(found(file(&directory, "32", &bits_32)), Reach::FromOutside(NotPreloaded::OtherMachine));
    }

    #[test]
    fn a_file_that_the_kernel_cannot_execute_is_not_of_another_architecture() {
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in
            [("empty", &b""[..]), ("text", b"ls -l\n"), ("cut", &LIBRARY[..32]), ("magic", b"\x7fELF")]
        {
            assert_eq!(
                found(file(&directory, name, content)),
                Reach::FromOutside(NotPreloaded::NotExecutable),
                "{name}"
            );
        }
    }

    #[test]
    fn a_cycle_of_scripts_is_not_followed_forever() {
        let directory = tempfile::tempdir().unwrap();
        let ring = format!("#!{}\n", directory.path().join("ring").display());
        let path = file(&directory, "ring", ring.as_bytes());
        assert_eq!(found(path), Reach::FromOutside(NotPreloaded::NestedScripts));
    }

    #[test]
    fn a_name_is_searched_like_a_shell_does() {
        let directory = tempfile::tempdir().unwrap();
        let path = file(&directory, "thing", b"#!/bin/sh\n");
        let search = std::env::join_paths([Path::new("/nonexistent"), directory.path()]).unwrap();
        assert_eq!(LaunchProgram::find(OsStr::new("thing"), &search).unwrap().path, path);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let error = LaunchProgram::find(OsStr::new("thing"), &search).unwrap_err();
        assert_eq!(error.to_string(), "`thing` not found in PATH");
        let error = LaunchProgram::find(path.as_os_str(), &search).unwrap_err();
        assert!(error.to_string().ends_with("thing is not executable: `chmod +x` it"), "{error}");
        assert!(matches!(
            LaunchProgram::find(path.with_file_name("none").as_os_str(), &search),
            Err(LaunchProgramError::Unreadable { .. })
        ));
    }

    proptest::proptest! {
        #[test]
        fn a_damaged_program_never_panics(at in 0_usize..2048, byte: u8) {
            let mut damaged = LIBRARY.to_vec();
            damaged[at] = byte;
            let mut file = tempfile::tempfile().unwrap();
            std::io::Write::write_all(&mut file, &damaged).unwrap();
            let _ = reach_of_elf(file);
        }
    }
}
