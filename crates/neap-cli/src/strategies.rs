//! `--strategy` and a task's `strategy`: the engine's own strategies, and those of a program that studies others.

use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Command, Error, ValueEnum};
use neaptide::{Strategy, StrategyChoice};
use std::ffi::OsStr;
use std::sync::OnceLock;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StrategyArg {
    /// Whichever is predicted fastest
    Auto,
    /// As early as memory allows, some of them kept
    Preload,
    /// As a search finds that starts from preload
    Search,
    /// All of them, once
    Resident,
    #[value(skip)]
    Other(Strategy),
}

/// Options that there were: of `neap run`, and of `neap train`.
const GONE: [&str; 4] = ["blocks", "ondemand", "odswap", "swapadvisor"];

static OTHERS: OnceLock<&'static [Strategy]> = OnceLock::new();

/// From now on these have names, too.
pub fn add(others: &'static [Strategy]) {
    let _ = OTHERS.set(others);
}

fn other(name: &str) -> Option<Strategy> {
    let mut others = OTHERS.get().copied().unwrap_or_default().iter().copied();
    others.find(|strategy| strategy.name() == name)
}

/// # Errors
/// When there is none of this name.
pub fn by_name(name: &str) -> Result<Strategy, String> {
    other(name).map_or_else(|| gone(name).map_or_else(|| name.parse(), Err), Ok)
}

/// What is said of an option that is gone.
fn gone(name: &str) -> Option<String> {
    GONE.contains(&name).then(|| {
        format!("strategy '{name}' is gone: it never won, and only studies/ compare with it now")
    })
}

impl StrategyArg {
    pub fn choice(self) -> StrategyChoice {
        let strategy = match self {
            StrategyArg::Auto => return StrategyChoice::Auto,
            StrategyArg::Search => Strategy::Search,
            StrategyArg::Preload => Strategy::Preload,
            StrategyArg::Resident => Strategy::Resident,
            StrategyArg::Other(other) => other,
        };
        StrategyChoice::Only(strategy)
    }
}

/// Reads names of `T`, and tells of those that are gone.
#[derive(Clone)]
pub struct Names<T: ValueEnum + Clone + Send + Sync + 'static> {
    listed: EnumValueParser<T>,
    other: fn(&str) -> Option<T>,
}

/// Of `neap run`.
pub fn names() -> Names<StrategyArg> {
    Names {
        listed: EnumValueParser::new(),
        other: |name| other(name).map(StrategyArg::Other),
    }
}

/// Those that are listed.
pub fn listed<T: ValueEnum + Clone + Send + Sync + 'static>() -> Names<T> {
    Names {
        listed: EnumValueParser::new(),
        other: |_| None,
    }
}

impl<T: ValueEnum + Clone + Send + Sync + 'static> TypedValueParser for Names<T> {
    type Value = T;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<T, Error> {
        let name = value.to_str().unwrap_or_default();
        if let Some(other) = (self.other)(name) {
            return Ok(other);
        }
        match gone(name) {
            Some(gone) => Err(Error::raw(ErrorKind::ValueValidation, gone).with_cmd(command)),
            None => self.listed.parse_ref(command, arg, value),
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        self.listed.possible_values()
    }
}
