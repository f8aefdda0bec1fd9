//! What `neap gpu run` says in the environment. Without a socket the hook stands aside.

use std::path::PathBuf;
use std::sync::OnceLock;

pub struct Settings {
    pub socket: PathBuf,
    pub chunk_bytes: u64,
    pub quota_bytes: u64,
    pub period_ns: u64,
    pub deadline_ns: u64,
    pub wcet_ns: u64,
}

const MIB: u64 = 1 << 20;

/// The smallest chunk a card maps.
pub const SMALLEST_CHUNK: u64 = 2 * MIB;

static SETTINGS: OnceLock<Option<Settings>> = OnceLock::new();

/// `None` where no scheduler is named.
pub fn get() -> Option<&'static Settings> {
    SETTINGS.get_or_init(read).as_ref()
}

fn read() -> Option<Settings> {
    let socket = std::env::var_os(neap_card::SOCKET_VARIABLE)?;
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        text.parse::<u64>().ok()
    };
    let chunk = number("NEAP_GPU_CHUNK").unwrap_or(32 * MIB);
    Some(Settings {
        socket: socket.into(),
        chunk_bytes: chunk.max(SMALLEST_CHUNK).next_multiple_of(SMALLEST_CHUNK),
        quota_bytes: number("NEAP_GPU_MEMORY").unwrap_or(0),
        period_ns: number("NEAP_GPU_PERIOD").unwrap_or(0),
        deadline_ns: number("NEAP_GPU_DEADLINE").unwrap_or(0),
        wcet_ns: number("NEAP_GPU_WCET").unwrap_or(0),
    })
}

/// One line on standard error.
pub fn warn(text: &str) {
    eprintln!("neap: {text}");
}
