//! Where this process's memory cgroup is: reads `/proc/self/cgroup` and `/proc/self/mountinfo`.

use std::path::{Path, PathBuf};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

/// The memory cgroup that a process is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub version: Version,
    /// Where the hierarchy is mounted.
    pub mount: PathBuf,
    /// The process's own group, below `mount` or the same.
    pub dir: PathBuf,
}

/// The memory cgroup of this process.
pub fn find() -> Result<Found, String> {
    let read =
        |path: &str| std::fs::read_to_string(path).map_err(|e| format!("cannot read {path}: {e}"));
    let found = locate(&read("/proc/self/cgroup")?, &read("/proc/self/mountinfo")?)
        .ok_or("no memory cgroup hierarchy is mounted")?;
    // In a container the path may be the host's, and only the mount itself be visible.
    if found.dir.is_dir() {
        return Ok(found);
    }
    Ok(Found {
        dir: found.mount.clone(),
        ..found
    })
}

/// From the texts of the two files. A v1 hierarchy with the memory controller goes first: where both
/// are mounted, the controller is there.
fn locate(cgroups: &str, mounts: &str) -> Option<Found> {
    let own = |wanted: &dyn Fn(&str, &str) -> bool| {
        cgroups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            wanted(id, controllers).then_some(path)
        })
    };
    let v1 = own(&|_, controllers| controllers.split(',').any(|c| c == "memory"));
    let v2 = own(&|id, controllers| id == "0" && controllers.is_empty());
    let below = |version, (root, mount): (String, String), path: &str| {
        let inside = Path::new(path)
            .strip_prefix(&root)
            .unwrap_or(Path::new(path))
            .to_path_buf();
        let inside = inside.strip_prefix("/").unwrap_or(&inside).to_path_buf();
        Found {
            version,
            dir: Path::new(&mount).join(inside),
            mount: mount.into(),
        }
    };
    let is_v1 =
        |kind: &str, options: &str| kind == "cgroup" && options.split(',').any(|o| o == "memory");
    if let (Some(path), Some(mount)) = (v1, mount(mounts, &is_v1)) {
        return Some(below(Version::V1, mount, path));
    }
    let mount = mount(mounts, &|kind, _| kind == "cgroup2")?;
    Some(below(Version::V2, mount, v2?))
}

/// Root and mount point of the first mount whose type and options fit.
/// A line is `31 23 0:28 ROOT MOUNTPOINT OPTIONS... - TYPE SOURCE SUPEROPTIONS`.
fn mount(mounts: &str, wanted: &dyn Fn(&str, &str) -> bool) -> Option<(String, String)> {
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, point) = (left.next()?, left.next()?);
        let mut right = right.split(' ');
        let (kind, _, options) = (right.next()?, right.next()?, right.next()?);
        wanted(kind, options).then(|| (unescape(root), unescape(point)))
    })
}

/// Blanks and such are written as `\040`.
fn unescape(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        result.push_str(&rest[..at]);
        let code = rest.get(at + 1..at + 4);
        match code.and_then(|c| u8::from_str_radix(c, 8).ok()) {
            Some(byte) => {
                result.push(char::from(byte));
                rest = &rest[at + 4..];
            }
            None => {
                result.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    result + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1_MOUNTS: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw";

    #[test]
    fn the_v1_controller_goes_before_an_empty_v2() {
        let found = locate("9:name=systemd:/\n4:memory:/a/b\n0::/x\n", V1_MOUNTS).unwrap();
        assert_eq!(found.version, Version::V1);
        assert_eq!(found.dir, Path::new("/sys/fs/cgroup/memory/a/b"));
        assert_eq!(found.mount, Path::new("/sys/fs/cgroup/memory"));
    }

    #[test]
    fn a_unified_hierarchy() {
        let mounts = "26 23 0:23 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate";
        let found = locate("0::/user.slice/user-1000.slice\n", mounts).unwrap();
        assert_eq!(found.version, Version::V2);
        assert_eq!(
            found.dir,
            Path::new("/sys/fs/cgroup/user.slice/user-1000.slice")
        );
    }

    #[test]
    fn a_mount_of_a_part_of_the_hierarchy() {
        let mounts = "26 23 0:23 /docker/1f /sys/fs/cg\\040roup rw - cgroup cgroup rw,memory";
        let found = locate("3:memory:/docker/1f/inner\n", mounts).unwrap();
        assert_eq!(found.dir, Path::new("/sys/fs/cg roup/inner"));
    }

    #[test]
    fn nothing_mounted_is_nothing_found() {
        assert_eq!(locate("0::/\n", ""), None);
        assert_eq!(locate("", V1_MOUNTS), None);
        assert_eq!(locate("garbage", "more - garbage"), None);
    }
}
