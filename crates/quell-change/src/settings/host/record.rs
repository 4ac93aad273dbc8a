//! A host setting as the journal records it.

use std::fmt;

use quell_linux::proc::ProcRoot;
use serde::{Deserialize, Serialize};

use super::{KnownContexts, SettingPlace, differs, make, restore};
use crate::change::{
    CompareError, Comparison, Drift, Kind, PlannedChange, Present, Undo, UndoOrder, UndoOutcome, unless_out_of_sight,
};
use crate::devices::RecordedDevice;
use crate::recreated::ValuesInForce;
use crate::settings::SettingsError;
use crate::undo::UndoError;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct HostSetting {
    /// `SO_NETNS_COOKIE` of the namespace.
    pub namespace_cookie: u64,
    /// Inode of the device's sysfs directory, which identifies the device after it was renamed or moved to another
    /// namespace. Absent if it could not be read, and for settings without a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sysfs_inode: Option<u64>,
    pub setting: PlannedChange,
}

impl HostSetting {
    pub(crate) fn recorded_device(&self) -> Option<RecordedDevice> {
        let device = self.setting.device()?;
        let Self { namespace_cookie, sysfs_inode, .. } = *self;
        Some(RecordedDevice { namespace_cookie, ifindex: device.ifindex, sysfs_inode })
    }

    fn drift(&self, made: String, now: Option<String>) -> Drift {
        let device = self.setting.device().map(ToString::to_string);
        Drift { device, queue: self.setting.queue(), setting: self.setting.text().what, made, now, missing: None }
    }
}

impl fmt::Display for HostSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.setting.text().fmt(f)
    }
}

impl Kind for HostSetting {
    fn undo(&self, undo: &mut Undo<'_>) -> Result<UndoOutcome, UndoError> {
        let what = self.setting.device().map_or_else(|| self.setting.text().what, ToString::to_string);
        let of_others = ValuesInForce::before_undo_of(self, undo);
        let undoing = SettingPlace::find(undo.proc, self).and_then(|place| match place {
            Some(place) => restore(&place.kernel(undo.proc), undo.contexts, &self.setting, undo.outcome),
            None => Ok(UndoOutcome::AlreadyGone),
        });
        of_others.set_again(undo.proc);
        unless_out_of_sight(undoing, &what)
    }

    fn compare(&self, present: &Present<'_>) -> Result<Comparison, CompareError> {
        let place = match SettingPlace::find(present.proc, self) {
            Ok(Some(place)) => place,
            Ok(None) => return Ok(Comparison::Gone),
            Err(error) if error.is_out_of_sight() => {
                let made = self.setting.text().new;
                return Ok(Comparison::OutOfSight(made.map(|made| self.drift(made, None))));
            }
            Err(error) => return Err(error.into()),
        };
        let differs = differs(&place.kernel(present.proc), &self.setting)?;
        Ok(differs.map_or(Comparison::Same, |(made, now)| Comparison::Differs(self.drift(made, now))))
    }

    fn make_again(&self, present: &Present<'_>) -> Result<(), CompareError> {
        if let Some(place) = SettingPlace::find(present.proc, self)? {
            make(&place.kernel(present.proc), &KnownContexts::default(), &self.setting)?;
        }
        Ok(())
    }

    fn namespace_cookie(&self) -> Option<u64> {
        Some(self.namespace_cookie)
    }

    fn exists(&self, proc: &ProcRoot) -> Result<bool, SettingsError> {
        Ok(SettingPlace::find(proc, self)?.is_some())
    }

    fn has_owners(&self) -> bool {
        self.setting.recreates_queues()
    }

    fn undo_order(&self) -> UndoOrder {
        UndoOrder::Plan(self.setting.inverse().rank())
    }
}
