//! What programs that share a card and their scheduler say to each other: a line each way, over a Unix socket.
//!
//! ```text
//!   program                              scheduler
//!   hello …                          ->
//!                                    <-  welcome …  |  refused why
//!   want …                           ->                         a job begins: it asks for the card
//!                                    <-  out 64MiB              to another program: give memory up
//!   gone …                           ->                         from that one, when it is copied and released
//!                                    <-  in                     to the first: all that is away comes back
//!   here …                           ->
//!                                    <-  go                     the card is its own
//!   need 32MiB                       ->                         it allocates
//!                                    <-  granted  |  denied
//!                                    <-  yield                  others wait
//!   done …                           ->                         nothing of it runs on the card any more
//! ```
//! Memory is in bytes, times are in nanoseconds.

#![forbid(unsafe_code)]

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Both sides must say the same.
pub const VERSION: u64 = 1;

/// Where the scheduler listens, for programs and for those who start them.
pub const SOCKET_VARIABLE: &str = "NEAP_GPU_SOCKET";

/// Most bytes in a line.
pub const LONGEST_LINE: usize = 4096;

/// Where the scheduler listens unless told otherwise.
pub fn default_socket() -> PathBuf {
    let given = std::env::var_os(SOCKET_VARIABLE).map(PathBuf::from);
    given.unwrap_or_else(|| {
        let folder = std::env::var_os("XDG_RUNTIME_DIR").unwrap_or_else(|| "/run".into());
        PathBuf::from(folder).join("neap-gpud.sock")
    })
}

/// What a program says first. Zero means that it has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    pub version: u64,
    pub name: String,
    /// The card's memory, as its driver says.
    pub card_bytes: u64,
    /// The unit of swapping.
    pub chunk_bytes: u64,
    /// The most it may hold.
    pub quota_bytes: u64,
    pub period_ns: u64,
    pub deadline_ns: u64,
    /// The longest execution of a job; measured where it is zero.
    pub wcet_ns: u64,
    /// What it holds already: after the scheduler was started anew.
    pub resident_bytes: u64,
    pub away_bytes: u64,
    pub fixed_bytes: u64,
    /// Whether it holds the card.
    pub holds: u64,
}

/// From a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Say {
    Hello(Hello),
    /// It asks for the card. `is_job`: the program says itself that a job begins here.
    Want {
        is_job: bool,
    },
    /// Nothing of it runs any more; it ran for so long.
    Done {
        ran_ns: u64,
    },
    /// It is about to take memory. `fixed` is what cannot leave the card.
    Need {
        bytes: u64,
        fixed: bool,
    },
    /// It released memory on the card.
    Gave {
        bytes: u64,
        fixed: bool,
    },
    /// It forgot memory that was away.
    Forgot {
        bytes: u64,
    },
    /// `bytes` left the card, of which `saved` were copied to the host, in this time.
    Gone {
        bytes: u64,
        saved: u64,
        ns: u64,
    },
    /// So many bytes came back, in this time.
    Here {
        bytes: u64,
        ns: u64,
    },
}

/// From the scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// `memory_bytes` is what the program may think the card has. `stop`: without a scheduler, end.
    Welcome {
        memory_bytes: u64,
        stop: bool,
    },
    Refused {
        why: String,
    },
    Granted,
    Denied,
    Out {
        bytes: u64,
    },
    In,
    Go,
    Yield,
}

/// A line that says nothing known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown(pub String);

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not understood: {}", self.0)
    }
}

impl std::error::Error for Unknown {}

impl fmt::Display for Say {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Say::Hello(h) => write!(
                f,
                "hello {} {} {} {} {} {} {} {} {} {} {} {}",
                h.version,
                h.card_bytes,
                h.chunk_bytes,
                h.quota_bytes,
                h.period_ns,
                h.deadline_ns,
                h.wcet_ns,
                h.resident_bytes,
                h.away_bytes,
                h.fixed_bytes,
                h.holds,
                one_line(&h.name),
            ),
            Say::Want { is_job } => write!(f, "want {}", u8::from(*is_job)),
            Say::Done { ran_ns } => write!(f, "done {ran_ns}"),
            Say::Need { bytes, fixed } => write!(f, "need {bytes} {}", u8::from(*fixed)),
            Say::Gave { bytes, fixed } => write!(f, "gave {bytes} {}", u8::from(*fixed)),
            Say::Forgot { bytes } => write!(f, "forgot {bytes}"),
            Say::Gone { bytes, saved, ns } => write!(f, "gone {bytes} {saved} {ns}"),
            Say::Here { bytes, ns } => write!(f, "here {bytes} {ns}"),
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Order::Welcome { memory_bytes, stop } => {
                write!(f, "welcome {memory_bytes} {}", u8::from(*stop))
            }
            Order::Refused { why } => write!(f, "refused {}", one_line(why)),
            Order::Granted => write!(f, "granted"),
            Order::Denied => write!(f, "denied"),
            Order::Out { bytes } => write!(f, "out {bytes}"),
            Order::In => write!(f, "in"),
            Order::Go => write!(f, "go"),
            Order::Yield => write!(f, "yield"),
        }
    }
}

impl FromStr for Say {
    type Err = Unknown;

    fn from_str(line: &str) -> Result<Say, Unknown> {
        let mut words = Words::of(line);
        let said = match words.next() {
            "hello" => {
                let mut number = || words.number();
                let mut hello = Hello {
                    version: number()?,
                    card_bytes: number()?,
                    chunk_bytes: number()?,
                    quota_bytes: number()?,
                    period_ns: number()?,
                    deadline_ns: number()?,
                    wcet_ns: number()?,
                    resident_bytes: number()?,
                    away_bytes: number()?,
                    fixed_bytes: number()?,
                    holds: number()?,
                    name: String::new(),
                };
                hello.name = words.rest.trim().to_owned();
                return Ok(Say::Hello(hello));
            }
            "want" => Say::Want {
                is_job: words.flag()?,
            },
            "done" => Say::Done {
                ran_ns: words.number()?,
            },
            "need" => Say::Need {
                bytes: words.number()?,
                fixed: words.flag()?,
            },
            "gave" => Say::Gave {
                bytes: words.number()?,
                fixed: words.flag()?,
            },
            "forgot" => Say::Forgot {
                bytes: words.number()?,
            },
            "gone" => Say::Gone {
                bytes: words.number()?,
                saved: words.number()?,
                ns: words.number()?,
            },
            "here" => Say::Here {
                bytes: words.number()?,
                ns: words.number()?,
            },
            _ => return Err(words.unknown()),
        };
        words.end(said)
    }
}

impl FromStr for Order {
    type Err = Unknown;

    fn from_str(line: &str) -> Result<Order, Unknown> {
        let mut words = Words::of(line);
        let order = match words.next() {
            "welcome" => Order::Welcome {
                memory_bytes: words.number()?,
                stop: words.flag()?,
            },
            "refused" => {
                let why = words.rest.trim().to_owned();
                return Ok(Order::Refused { why });
            }
            "granted" => Order::Granted,
            "denied" => Order::Denied,
            "out" => Order::Out {
                bytes: words.number()?,
            },
            "in" => Order::In,
            "go" => Order::Go,
            "yield" => Order::Yield,
            _ => return Err(words.unknown()),
        };
        words.end(order)
    }
}

/// The words of a line.
struct Words<'a> {
    line: &'a str,
    rest: &'a str,
}

impl<'a> Words<'a> {
    fn of(line: &'a str) -> Words<'a> {
        let line = line.trim_end_matches(['\n', '\r']);
        Words { line, rest: line }
    }

    fn next(&mut self) -> &'a str {
        let (word, rest) = self.rest.split_once(' ').unwrap_or((self.rest, ""));
        self.rest = rest;
        word
    }

    fn number(&mut self) -> Result<u64, Unknown> {
        self.next().parse().map_err(|_| self.unknown())
    }

    fn flag(&mut self) -> Result<bool, Unknown> {
        Ok(self.number()? != 0)
    }

    fn end<T>(&self, value: T) -> Result<T, Unknown> {
        match self.rest.is_empty() {
            true => Ok(value),
            false => Err(self.unknown()),
        }
    }

    fn unknown(&self) -> Unknown {
        Unknown(self.line.chars().take(80).collect())
    }
}

fn one_line(text: &str) -> String {
    let text = text.chars().take(200);
    text.map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let hello = Hello {
            version: VERSION,
            name: "python app.py".into(),
            card_bytes: 1,
            chunk_bytes: 2,
            quota_bytes: 3,
            period_ns: 4,
            deadline_ns: 5,
            wcet_ns: 6,
            resident_bytes: 7,
            away_bytes: 8,
            fixed_bytes: 9,
            holds: 1,
        };
        let (bytes, ns) = (u64::MAX, 12);
        for said in [
            Say::Hello(hello),
            Say::Want { is_job: true },
            Say::Done { ran_ns: 5 },
            Say::Need { bytes, fixed: true },
            Say::Gave {
                bytes,
                fixed: false,
            },
            Say::Forgot { bytes },
            Say::Gone {
                bytes,
                saved: 3,
                ns,
            },
            Say::Here { bytes, ns },
        ] {
            assert_eq!(said.to_string().parse(), Ok(said));
        }
        for order in [
            Order::Welcome {
                memory_bytes: 1,
                stop: true,
            },
            Order::Refused {
                why: "it is full".into(),
            },
            Order::Granted,
            Order::Denied,
            Order::Out { bytes },
            Order::In,
            Order::Go,
            Order::Yield,
        ] {
            assert_eq!(order.to_string().parse(), Ok(order));
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for line in [
            "",
            "hello",
            "hello 1 2",
            "want",
            "want 1 2",
            "need -1 0",
            "gone 1 2",
            "go away",
        ] {
            assert!(line.parse::<Say>().is_err(), "{line}");
        }
        assert!("out".parse::<Order>().is_err());
        assert!("granted 1".parse::<Order>().is_err());
    }

    #[test]
    fn a_name_stays_on_its_line() {
        let hello = Hello {
            name: "a\nwant".into(),
            ..Hello::default()
        };
        assert!(!Say::Hello(hello).to_string().contains('\n'));
    }
}
