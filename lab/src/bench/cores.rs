//! A core of its own for Redis, so that the time of a call does not include waits for a busy core.

pub(super) use imp::OwnCore;

#[cfg(target_os = "linux")]
mod imp {
    use std::fs;

    use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

    /// The given process runs on the first core, the calling process and its children on the others, until this is dropped.
    pub(in super::super) struct OwnCore {
        before: CpuSet,
    }

    impl OwnCore {
        /// `None` if there is only one core, or if the process cannot be bound to one.
        pub(in super::super) fn of(one: u32) -> Option<OwnCore> {
            let before = sched_getaffinity(None).ok()?;
            let first = (0..CpuSet::MAX_CPU).find(|core| before.is_set(*core))?;
            let (mut own, mut others) = (CpuSet::new(), before);
            own.set(first);
            others.unset(first);
            if others.count() == 0 {
                return None;
            }
            let core = OwnCore { before };
            bind(std::process::id(), &others);
            bind(one, &own).then_some(core)
        }
    }

    impl Drop for OwnCore {
        fn drop(&mut self) {
            bind(std::process::id(), &self.before);
        }
    }

    /// Binds a process with all its threads to cores. Returns whether that worked for every thread that still exists.
    fn bind(process: u32, cores: &CpuSet) -> bool {
        let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        let threads = threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok());
        let mut all = true;
        for thread in threads {
            all &= Pid::from_raw(thread).is_some_and(|thread| sched_setaffinity(Some(thread), cores).is_ok());
            let children = fs::read_to_string(format!("/proc/{process}/task/{thread}/children")).unwrap_or_default();
            for child in children.split_ascii_whitespace().filter_map(|child| child.parse().ok()) {
                all &= bind(child, cores);
            }
        }
        all
    }

    #[cfg(test)]
    mod tests {
        use std::process::{Child, Command};

        use super::*;

        struct Ended(Child);

        impl Drop for Ended {
            fn drop(&mut self) {
                self.0.kill().and_then(|()| self.0.wait()).unwrap();
            }
        }

        fn sleeper() -> Ended {
            Ended(Command::new("sleep").arg("60").spawn().unwrap())
        }

        fn cores(process: u32) -> CpuSet {
            sched_getaffinity(Pid::from_raw(i32::try_from(process).unwrap())).unwrap()
        }

        #[test]
        fn a_process_has_its_own_core_until_the_affinity_is_restored() {
            let (one, other) = (sleeper(), sleeper());
            let before = cores(one.0.id());
            let Some(core) = OwnCore::of(one.0.id()) else {
                assert_eq!(before.count(), 1, "there is a core to give away");
                return;
            };
            let (own, others) = (cores(one.0.id()), cores(other.0.id()));
            assert_eq!((own.count(), others.count()), (1, before.count() - 1));
            assert!(
                (0..CpuSet::MAX_CPU).all(|core| !(own.is_set(core) && others.is_set(core))),
                "no other process has the core"
            );
            drop(core);
            assert!(cores(one.0.id()) == before && cores(other.0.id()) == before);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod imp {
    /// Not supported on this system.
    pub(in super::super) struct OwnCore;

    impl OwnCore {
        /// Always `None`: a process cannot be bound to a core.
        pub(in super::super) fn of(_: u32) -> Option<OwnCore> {
            None
        }
    }
}
