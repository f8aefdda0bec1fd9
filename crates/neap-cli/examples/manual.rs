//! Manual pages and completions of `neap`, from its own definitions.
//!
//! ```text
//!   FOLDER/share/man/man1/neap.1, neap-run.1, …
//!   FOLDER/share/bash-completion/completions/neap
//!   FOLDER/share/zsh/site-functions/_neap
//!   FOLDER/share/fish/vendor_completions.d/neap.fish
//! ```
//! `cargo run --release -p neap-cli --example manual -- FOLDER`.

use clap_complete::Shell;
use std::path::Path;
use std::{fs, io};

/// Each shell with the place and name where it looks for completions.
const SHELLS: [(Shell, &str); 3] = [
    (Shell::Bash, "share/bash-completion/completions/neap"),
    (Shell::Zsh, "share/zsh/site-functions/_neap"),
    (Shell::Fish, "share/fish/vendor_completions.d/neap.fish"),
];

fn main() -> io::Result<()> {
    let Some(folder) = std::env::args_os().nth(1) else {
        return Err(io::Error::other("name a folder"));
    };
    run(Path::new(&folder))
}

/// Writes all of them below `folder`.
fn run(folder: &Path) -> io::Result<()> {
    let pages = folder.join("share/man/man1");
    fs::create_dir_all(&pages)?;
    clap_mangen::generate_to(neap_cli::visible_command(), &pages)?;
    for (shell, place) in SHELLS {
        let path = folder.join(place);
        fs::create_dir_all(path.parent().unwrap_or(folder))?;
        fs::write(&path, neap_cli::completions(shell))?;
    }
    println!("manual pages and completions are in {}", folder.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_that_users_see_has_a_page_and_is_completed() {
        let folder = tempfile::tempdir().unwrap();
        run(folder.path()).unwrap();
        let command = neap_cli::command();
        let (hidden, shown): (Vec<_>, Vec<_>) =
            command.get_subcommands().partition(|c| c.is_hide_set());
        assert!(shown.len() >= 12 && hidden.len() == 1);
        let page = |name: &str| {
            let path = folder.path().join("share/man/man1");
            fs::read_to_string(path.join(format!("neap{name}.1")))
        };
        assert!(page("").unwrap().contains("Exit codes"));
        let completions = SHELLS.map(|(_, place)| {
            let path = folder.path().join(place);
            fs::read_to_string(path).unwrap()
        });
        for command in shown {
            let page = page(&format!("-{}", command.get_name())).unwrap();
            for option in command.get_arguments().filter(|a| !a.is_hide_set()) {
                if let Some(long) = option.get_long() {
                    let escaped = long.replace('-', "\\-");
                    assert!(page.contains(&escaped), "{long} in {}", command.get_name());
                }
            }
            for text in &completions {
                assert!(text.contains(command.get_name()), "{}", command.get_name());
            }
        }
        for command in hidden {
            assert!(page(&format!("-{}", command.get_name())).is_err());
        }
        assert!(completions[0].contains("--memory-budget"));
    }
}
