//! Who is at the other end of a socket, as the kernel says.

use std::io;
use std::mem::size_of;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// The process and the user that connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    pub pid: u32,
    pub uid: u32,
}

/// # Errors
/// When the kernel does not say.
pub fn of(socket: &UnixStream) -> io::Result<Peer> {
    let mut found = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `found`, which has so many.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    match status {
        0 => Ok(Peer {
            pid: found.pid.unsigned_abs(),
            uid: found.uid,
        }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The user of this process.
pub fn own_uid() -> u32 {
    // SAFETY: it only asks.
    unsafe { libc::geteuid() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_who_connects() {
        let (one, _other) = UnixStream::pair().unwrap();
        let expected = Peer {
            pid: std::process::id(),
            uid: own_uid(),
        };
        assert_eq!(of(&one).unwrap(), expected);
    }
}
