//! The user's kernels, in a cache directory. Each kernel has a directory with the image, the
//! driver modules that guests need, and its origin. A kernel appears in the store completely or not at all.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use quell_linux::own_file::{self, NotOwn};
use quell_linux::visible;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::kernel_name::KernelName;
use crate::modules;

const IMAGE: &str = "vmlinuz";
const MODULES: &str = "modules";
const ORIGIN: &str = "kernel.json";

#[derive(Debug, Clone)]
pub struct Store {
    dir: PathBuf,
}

#[derive(Debug, Clone)]
pub struct StoredKernel {
    pub origin: Origin,
    dir: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Origin {
    #[schemars(with = "String")]
    pub name: KernelName,
    /// Package version, such as `6.12.107-1`.
    pub version: String,
    /// Suite of the distribution, such as `trixie-backports`.
    pub suite: String,
}

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    #[error("no cache directory for kernels: set XDG_CACHE_HOME or HOME")]
    NoPlace,
    #[error("kernel {name} has not been fetched ({}): run `quell vm get {name}`", here(.kernels))]
    NotHere { name: KernelName, kernels: Vec<KernelName> },
    #[error("no kernels fetched: run `quell vm get`")]
    Empty,
    #[error(
        "the kernel cache {dir} is not private to this user: {source}; set XDG_CACHE_HOME to a private directory, \
         for root for example /var/cache", dir = visible::path(.dir)
    )]
    NotOwn { dir: PathBuf, source: NotOwn },
    #[error("{action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{path} does not describe the origin of the kernel: {source}; remove the directory and fetch it again")]
    Origin { path: PathBuf, source: serde_json::Error },
}

fn here(kernels: &[KernelName]) -> String {
    match kernels {
        [] => "no kernel is stored".to_owned(),
        kernels => format!("stored: {}", kernels.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    }
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { action, path, source }
}

impl Store {
    /// Cache of this user: `$XDG_CACHE_HOME/quell/kernels`, or `~/.cache/quell/kernels`. Only this user and root may
    /// have write access. A root process with another user's HOME is therefore refused.
    pub fn of_user() -> Result<Self, StoreError> {
        let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
        let dir = cache.ok_or(StoreError::NoPlace)?.join("quell").join("kernels");
        own_file::check_directory(&dir).map_err(|source| StoreError::NotOwn { dir: dir.clone(), source })?;
        Ok(Self::in_dir(dir))
    }

    pub fn in_dir(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Kernels in the store, sorted by name. The newest is last.
    pub fn kernels(&self) -> Result<Vec<StoredKernel>, StoreError> {
        let failed = || io_error("listing", &self.dir);
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(failed())?,
        };
        let mut kernels = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed())?;
            let named = entry.file_name().to_str().is_some_and(|name| name.parse::<KernelName>().is_ok());
            // Earlier versions stored an extracted kernel instead of the image. It has to be fetched again.
            if named && entry.path().join(IMAGE).exists() {
                kernels.push(StoredKernel::read(entry.path())?);
            }
        }
        kernels.sort_by(|one, other| one.origin.name.cmp(&other.origin.name));
        Ok(kernels)
    }

    pub fn kernel(&self, name: &KernelName) -> Result<StoredKernel, StoreError> {
        let kernels = self.kernels()?;
        let names = kernels.iter().map(|kernel| kernel.origin.name.clone()).collect();
        let found = kernels.into_iter().find(|kernel| kernel.origin.name == *name);
        found.ok_or_else(|| StoreError::NotHere { name: name.clone(), kernels: names })
    }

    /// Finds the newest kernel. If there are several flavours, this is the cloud build.
    pub fn newest(&self) -> Result<StoredKernel, StoreError> {
        let age = |kernel: &StoredKernel| kernel.origin.name.newest_and_leanest();
        self.kernels()?.into_iter().max_by_key(age).ok_or(StoreError::Empty)
    }

    /// Creates a staging directory on the same file system. Dropping the value removes it.
    pub(crate) fn stage(&self) -> Result<tempfile::TempDir, StoreError> {
        make_directory(&self.dir).map_err(io_error("making", &self.dir))?;
        tempfile::Builder::new()
            .prefix(".get-")
            .tempdir_in(&self.dir)
            .map_err(io_error("creating a directory in", &self.dir))
    }

    pub(crate) fn keep(
        &self,
        staged: tempfile::TempDir,
        image: &[u8],
        origin: &Origin,
    ) -> Result<StoredKernel, StoreError> {
        let write = |name: &str, content: &[u8]| {
            let path = staged.path().join(name);
            fs::write(&path, content).map_err(io_error("writing", &path))
        };
        write(IMAGE, image)?;
        let path = staged.path().join(ORIGIN);
        write(ORIGIN, &serde_json::to_vec_pretty(origin).map_err(|source| StoreError::Origin { path, source })?)?;
        let place = self.dir.join(origin.name.to_string());
        if place.exists() {
            fs::remove_dir_all(&place).map_err(io_error("removing the older kernel", &place))?;
        }
        fs::rename(staged.path(), &place).map_err(io_error("making", &place))?;
        // The directory was renamed, so its guard must not remove it.
        let _ = staged.keep();
        StoredKernel::read(place)
    }
}

/// Creates a directory and its parents. Only the owner may write to them, regardless of the umask.
pub(crate) fn make_directory(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(dir)
}

pub(crate) fn modules_dir(staged: &Path) -> PathBuf {
    staged.join(MODULES)
}

impl StoredKernel {
    fn read(dir: PathBuf) -> Result<Self, StoreError> {
        let path = dir.join(ORIGIN);
        let text = fs::read(&path).map_err(io_error("reading", &path))?;
        let origin = serde_json::from_slice(&text).map_err(|source| StoreError::Origin { path, source })?;
        Ok(Self { origin, dir })
    }

    #[must_use]
    pub fn image(&self) -> PathBuf {
        self.dir.join(IMAGE)
    }

    pub fn modules(&self) -> Result<Vec<PathBuf>, StoreError> {
        let dir = self.dir.join(MODULES);
        let files: io::Result<Vec<PathBuf>> =
            fs::read_dir(&dir).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
        Ok(modules::in_order(files.map_err(io_error("listing", &dir))?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(name: &str) -> Origin {
        Origin { name: name.parse().unwrap(), version: "1-1".to_owned(), suite: "stable".to_owned() }
    }

    fn keep(store: &Store, name: &str) -> StoredKernel {
        let staged = store.stage().unwrap();
        let modules = modules_dir(staged.path());
        fs::create_dir(&modules).unwrap();
        fs::write(modules.join("virtio_net.ko"), b"module").unwrap();
        store.keep(staged, b"kernel", &origin(name)).unwrap()
    }

    #[test]
    fn kernels_are_listed_from_old_to_new_and_no_staging_directory_remains() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::in_dir(dir.path());
        keep(&store, "7.3");
        keep(&store, "6.12");
        drop(store.stage().unwrap());
        let names: Vec<String> = store.kernels().unwrap().iter().map(|kernel| kernel.origin.name.to_string()).collect();
        assert_eq!(names, ["6.12", "7.3"]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_kernel_that_is_fetched_again_replaces_the_older_one() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::in_dir(dir.path());
        fs::write(keep(&store, "6.1").image(), b"old").unwrap();
        assert_eq!(fs::read(keep(&store, "6.1").image()).unwrap(), b"kernel");
    }

    #[test]
    fn a_kernel_without_an_image_has_to_be_fetched_again() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::in_dir(dir.path());
        fs::remove_file(keep(&store, "6.1").image()).unwrap();
        assert!(matches!(store.newest(), Err(StoreError::Empty)));
        keep(&store, "6.1");
        assert!(store.newest().is_ok());
    }

    #[test]
    fn a_missing_cache_is_empty() {
        assert!(Store::in_dir("/nonexistent/kernels").kernels().unwrap().is_empty());
    }

    #[test]
    fn a_missing_kernel_is_refused_with_the_available_ones() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::in_dir(dir.path());
        keep(&store, "6.12");
        let error = store.kernel(&"7.3".parse().unwrap()).unwrap_err().to_string();
        assert_eq!(error, "kernel 7.3 has not been fetched (stored: 6.12): run `quell vm get 7.3`");
    }
}
