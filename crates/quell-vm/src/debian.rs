//! Kernels from Debian's archive, fetched from the mirror that this system's apt uses. apt reads the indexes, verifies
//! signatures and checksums, and downloads packages. It uses a directory of this user. From the system's apt
//! configuration, only the mirror is used. System packages and package lists are not changed.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tar::Archive;
use thiserror::Error;

use crate::kernel_name::{Flavour, KernelName};
use crate::modules;
use crate::store::{Origin, Store, StoreError, StoredKernel, make_directory, modules_dir};
use quell_linux::visible::counted;
use quell_linux::{own_file, visible};

/// Suites whose kernels the lab supports, newest first: Debian 13's backports, Debian 13, Debian 12.
pub const SUITES: &[&str] = &["trixie-backports", "trixie", "bookworm"];
const META_PACKAGES: &[(&str, Flavour)] =
    &[("linux-image-cloud-amd64", Flavour::Cloud), ("linux-image-amd64", Flavour::Full)];
const KERNEL_PACKAGES: &[&str] = &["linux-image-", "linux-binary-", "linux-modules-"];
/// Output format for a list of sources: component, release and URI.
const INDEX_FORMAT: &str = "$(COMPONENT) $(RELEASE) $(REPO_URI)";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    pub origin: Origin,
    package: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FetchStep {
    Download { packages: usize, bytes: u64 },
    Unpack { package: String },
}

impl fmt::Display for FetchStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Download { packages, bytes } => {
                let mb = *bytes as f64 / 1e6;
                write!(f, "downloading {}, {mb:.1} MB", counted(*packages, "package"))
            }
            Self::Unpack { package } => write!(f, "unpacking {package}"),
        }
    }
}

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FetchError {
    #[error("could not run {program}: {source}; fetching kernels needs apt, on Debian or a derivative")]
    Run { program: &'static str, source: io::Error },
    #[error("{command} failed: {said}")]
    Failed { command: String, said: String },
    #[error("apt has no Debian archive among its sources: give a mirror with --mirror URL")]
    NoMirror,
    #[error("invalid mirror `{0}`: expected a URL such as http://HOST/debian")]
    InvalidMirror(String),
    #[error("the archive has no kernel {name}; available: {offered}")]
    NotOffered { name: KernelName, offered: String },
    #[error("index entry of {package}: no field `{field}`")]
    Index { package: String, field: &'static str },
    #[error("unpacking {package}: {source}")]
    Unpack { package: PathBuf, source: io::Error },
    #[error("no package of {0} contains a kernel")]
    NoKernel(String),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("preparing {path}: {source}")]
    Prepare { path: PathBuf, source: io::Error },
}

/// Debian's archive, read through a private apt configuration.
#[derive(Debug)]
pub struct Archives {
    dir: PathBuf,
}

impl Archives {
    /// Downloads the current package indexes to a directory next to the stored kernels. `mirror` replaces the system's
    /// mirror.
    pub fn update(store: &Store, mirror: Option<&str>) -> Result<Self, FetchError> {
        let mirror = match mirror {
            Some(mirror) => checked(mirror)?,
            None => system_mirror()?,
        };
        let archives = Self { dir: store.dir().join(".apt") };
        archives.prepare(&mirror)?;
        archives.apt("apt-get", &["update", "--error-on=any"])?;
        Ok(archives)
    }

    fn prepare(&self, mirror: &str) -> Result<(), FetchError> {
        let place = |name: &str| self.dir.join(name);
        for dir in ["lists/partial", "cache/archives/partial"] {
            make_directory(&place(dir)).map_err(prepare(&place(dir)))?;
        }
        let files = [("status", String::new()), ("sources.list", sources(mirror)), ("apt.conf", self.configuration())];
        for (name, content) in files {
            own_file::write(&place(name), content.as_bytes()).map_err(prepare(&place(name)))?;
        }
        Ok(())
    }

    /// apt reads this configuration after the system's own. The system's proxies remain in effect, but its post-update
    /// actions do not.
    fn configuration(&self) -> String {
        let dir = visible::path(&self.dir);
        format!(
            "Dir::State \"{dir}\";\nDir::State::status \"{dir}/status\";\nDir::Cache \"{dir}/cache\";\n\
             Dir::Etc::sourcelist \"{dir}/sources.list\";\nDir::Etc::sourceparts \"/dev/null\";\n\
             Acquire::Languages \"none\";\nAPT::Sandbox::User \"\";\n\
             #clear APT::Update::Post-Invoke;\n#clear APT::Update::Post-Invoke-Success;\n"
        )
    }

    fn apt(&self, program: &'static str, arguments: &[&str]) -> Result<String, FetchError> {
        let mut command = Command::new(program);
        command.arg("--config-file").arg(self.dir.join("apt.conf")).args(arguments).current_dir(&self.dir);
        run(program, &mut command)
    }

    pub fn offers(&self) -> Result<Vec<Offer>, FetchError> {
        let mut offers: Vec<Offer> = Vec::new();
        for suite in SUITES {
            for &(package, flavour) in META_PACKAGES {
                let entry = self.show(&format!("{package}/{suite}"))?;
                let version = field(&entry, "Version").ok_or_else(|| missing(package, "Version"))?;
                let Some(name) = KernelName::of_version(version, flavour) else { continue };
                if offers.iter().all(|offer| offer.origin.name != name) {
                    let origin = Origin { name, version: version.to_owned(), suite: (*suite).to_owned() };
                    offers.push(Offer { origin, package });
                }
            }
        }
        Ok(offers)
    }

    pub fn offer(&self, name: &KernelName) -> Result<Offer, FetchError> {
        let offers = self.offers()?;
        let offered: Vec<String> = offers.iter().map(|offer| offer.origin.name.to_string()).collect();
        let found = offers.into_iter().find(|offer| offer.origin.name == *name);
        found.ok_or_else(|| FetchError::NotOffered { name: name.clone(), offered: offered.join(", ") })
    }

    /// Downloads a kernel and stores the files that guests need. apt verifies the packages. `progress` is called before
    /// each step. On an error the store is unchanged.
    pub fn get(
        &self,
        offer: &Offer,
        store: &Store,
        progress: &mut dyn FnMut(FetchStep),
    ) -> Result<StoredKernel, FetchError> {
        let downloads = tempfile::tempdir_in(&self.dir).map_err(prepare(&self.dir))?;
        let packages = self.packages_of(offer)?;
        progress(FetchStep::Download { packages: packages.len(), bytes: packages.values().sum() });
        let mut command = Command::new("apt-get");
        command.arg("--config-file").arg(self.dir.join("apt.conf")).arg("download").args(packages.keys());
        run("apt-get", command.current_dir(downloads.path()))?;

        let staged = store.stage()?;
        let modules = modules_dir(staged.path());
        fs::create_dir(&modules).map_err(prepare(&modules))?;
        let mut image = None;
        for entry in fs::read_dir(downloads.path()).map_err(prepare(downloads.path()))? {
            let package = entry.map_err(prepare(downloads.path()))?.path();
            let name = package.file_name().unwrap_or_default().to_string_lossy().into_owned();
            progress(FetchStep::Unpack { package: name });
            image = unpack(&package, &modules)?.or(image);
        }
        let image = image.ok_or_else(|| FetchError::NoKernel(offer.origin.version.clone()))?;
        Ok(store.keep(staged, &image, &offer.origin)?)
    }

    /// Packages of a kernel as `NAME=VERSION`, with their sizes in bytes. They are the exact-version dependencies of
    /// the meta package, and the exact-version dependencies of those packages.
    fn packages_of(&self, offer: &Offer) -> Result<BTreeMap<String, u64>, FetchError> {
        let meta = self.show(&format!("{}={}", offer.package, offer.origin.version))?;
        let dependencies =
            |entry: &str| -> Vec<String> { kernel_dependencies(field(entry, "Depends").unwrap_or_default()).collect() };
        let mut found = BTreeMap::new();
        let mut open = dependencies(&meta);
        while let Some(package) = open.pop() {
            if found.contains_key(&package) {
                continue;
            }
            let entry = self.show(&package)?;
            open.extend(dependencies(&entry));
            found.insert(package, field(&entry, "Size").and_then(|size| size.parse().ok()).unwrap_or(0));
        }
        Ok(found)
    }

    fn show(&self, package: &str) -> Result<String, FetchError> {
        self.apt("apt-cache", &["show", "--no-all-versions", package])
    }
}

fn prepare(path: &Path) -> impl FnOnce(io::Error) -> FetchError {
    let path = path.to_owned();
    move |source| FetchError::Prepare { path, source }
}

fn missing(package: &str, field: &'static str) -> FetchError {
    FetchError::Index { package: package.to_owned(), field }
}

fn run(program: &'static str, command: &mut Command) -> Result<String, FetchError> {
    let output = command.stdin(Stdio::null()).env("LC_ALL", "C").output();
    let Output { status, stdout, stderr } = output.map_err(|source| FetchError::Run { program, source })?;
    if !status.success() {
        let arguments = command.get_args().map(|argument| argument.to_string_lossy());
        let command = std::iter::once(program.into()).chain(arguments).collect::<Vec<_>>().join(" ");
        return Err(FetchError::Failed { command, said: String::from_utf8_lossy(&stderr).trim().to_owned() });
    }
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

/// Debian mirror in the system's source list. The security archive is ignored, because it lacks some suites.
fn system_mirror() -> Result<String, FetchError> {
    let mut command = Command::new("apt-get");
    command.args(["indextargets", "--no-release-info", "--format", INDEX_FORMAT, "Created-By: Packages"]);
    mirror_among(&run("apt-get", &mut command)?).ok_or(FetchError::NoMirror)
}

fn mirror_among(indexes: &str) -> Option<String> {
    indexes.lines().find_map(|line| {
        let [component, release, uri] = line.splitn(3, ' ').collect::<Vec<_>>().try_into().ok()?;
        let is_archive = uri.trim_end_matches('/').ends_with("/debian") && !release.ends_with("-security");
        (component == "main" && is_archive).then(|| uri.to_owned())
    })
}

fn checked(mirror: &str) -> Result<String, FetchError> {
    let plain = !mirror.chars().any(|c| c.is_whitespace() || c.is_control() || "[]\"".contains(c));
    match plain && mirror.contains("://") {
        true => Ok(mirror.to_owned()),
        false => Err(FetchError::InvalidMirror(mirror.to_owned())),
    }
}

/// Text of the source list. If Debian's keyring is not installed, apt uses the keys that the system trusts.
fn sources(mirror: &str) -> String {
    let keyring = if Path::new(KEYRING).exists() { format!(" signed-by={KEYRING}") } else { String::new() };
    SUITES.iter().map(|suite| format!("deb [arch=amd64 target=Packages{keyring}] {mirror} {suite} main\n")).collect()
}

fn field<'a>(entry: &'a str, name: &str) -> Option<&'a str> {
    entry.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
}

/// Kernel packages in a dependency list such as `kmod, linux-modules-6.1 (= 6.1.5-1)`. Dependencies without an exact
/// version are ignored.
fn kernel_dependencies(depends: &str) -> impl Iterator<Item = String> {
    depends.split(',').filter_map(|dependency| {
        let (name, version) = dependency.trim().split_once(" (= ")?;
        let version = version.strip_suffix(')')?;
        let own = KERNEL_PACKAGES.iter().any(|prefix| name.starts_with(prefix));
        own.then(|| format!("{name}={version}"))
    })
}

/// Writes the modules that guests need to `modules`. Returns the kernel image if the package contains it.
fn unpack(package: &Path, modules: &Path) -> Result<Option<Vec<u8>>, FetchError> {
    let program = "dpkg-deb";
    let mut unpacking = Command::new(program)
        .arg("--fsys-tarfile")
        .arg(package)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|source| FetchError::Run { program, source })?;
    let failed = |source| FetchError::Unpack { package: package.to_owned(), source };
    let image = match unpacking.stdout.take() {
        Some(tar) => pick(Archive::new(tar), modules).map_err(failed)?,
        None => None,
    };
    let status = unpacking.wait().map_err(failed)?;
    if !status.success() {
        return Err(failed(io::Error::other(format!("{program} ended with {status}"))));
    }
    Ok(image)
}

fn pick(mut archive: Archive<impl io::Read>, modules: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut image = None;
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let Some(name) = path.file_name().filter(|_| entry.header().entry_type().is_file()) else { continue };
        if modules::needed(&path).is_some() {
            io::copy(&mut entry, &mut fs::File::create(modules.join(name))?)?;
        } else if name.to_string_lossy().starts_with("vmlinuz") {
            let mut content = Vec::new();
            entry.read_to_end(&mut content)?;
            image = Some(content);
        }
    }
    Ok(image)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_that_of_the_main_archive_and_not_of_security_updates() {
        let indexes = "main nodistro https://example.org/node\nmain bookworm-security http://example.org/debian-security/\n\
                       contrib bookworm http://example.org/debian/\nmain bookworm http://example.org/debian/\n";
        assert_eq!(mirror_among(indexes).as_deref(), Some("http://example.org/debian/"));
        assert_eq!(mirror_among("main noble http://example.org/ubuntu/\n"), None);
        assert_eq!(mirror_among(""), None);
    }

    #[test]
    fn a_mirror_cannot_inject_options() {
        for mirror in ["http://a/debian [trusted=yes]", "http://a/debian\ndeb http://b/", "a/debian", ""] {
            assert!(checked(mirror).is_err(), "{mirror}");
        }
        assert!(checked("https://example.org/debian").is_ok());
    }

    #[test]
    fn only_kernel_packages_with_an_exact_version_are_dependencies() {
        let depends = "linux-base-a (= 7.3), linux-image-7.3 (= 7.3-1), linux-modules-7.3 (= 7.3-1), kmod, \
                       initramfs-tools (>= 0.120) | linux-initramfs-tool";
        let found: Vec<String> = kernel_dependencies(depends).collect();
        assert_eq!(found, ["linux-image-7.3=7.3-1", "linux-modules-7.3=7.3-1"]);
    }

    #[test]
    fn each_fetch_step_is_displayed_in_words() {
        let steps = [
            FetchStep::Download { packages: 2, bytes: 31_560_000 },
            FetchStep::Unpack { package: "linux-image.deb".to_owned() },
        ];
        let said = steps.map(|step| step.to_string());
        assert_eq!(said, ["downloading 2 packages, 31.6 MB", "unpacking linux-image.deb"]);
    }

    #[test]
    fn a_field_is_found_by_its_full_name() {
        let entry = "Package: a\nDepends-On: x\nDepends: y, z\nVersion: 1\n";
        assert_eq!(field(entry, "Depends"), Some("y, z"));
        assert_eq!(field(entry, "Pre-Depends"), None);
    }

    #[test]
    fn only_the_kernel_and_needed_modules_are_unpacked() {
        let mut tar = tar::Builder::new(Vec::new());
        for (path, content) in [("boot/vmlinuz-6.1", "image"), ("lib/a/veth.ko", "module"), ("lib/a/other.ko", "no")] {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_cksum();
            tar.append_data(&mut header, path, content.as_bytes()).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        let image = pick(Archive::new(tar.into_inner().unwrap().as_slice()), dir.path()).unwrap();
        assert_eq!(image.as_deref(), Some(&b"image"[..]));
        let written: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(written, ["veth.ko"]);
    }
}
