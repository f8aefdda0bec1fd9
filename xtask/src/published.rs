//! Whether a crate's manifest says what a registry asks for, and names its tests' crates so that the crates can be published one after the
//! other. `cargo publish --dry-run` builds the packages, and looks at neither.

/// Of a manifest that is published, the beginnings of lines.
const WANTED: [&str; 7] = [
    "description = ",
    "documentation.workspace",
    "keywords.workspace",
    "license.workspace",
    "publish.workspace",
    "readme.workspace",
    "rust-version.workspace",
];

/// `floor_of` gives a crate's floor, if it is one of the workspace.
pub fn check(
    name: &str,
    manifest: &str,
    floor_of: impl Fn(&str) -> Option<u32>,
    faults: &mut Vec<String>,
) {
    if manifest.lines().any(|line| line == "publish = false") {
        return;
    }
    for wanted in WANTED {
        if !manifest.lines().any(|line| line.starts_with(wanted)) {
            let key = wanted
                .trim_end_matches(" = ")
                .trim_end_matches(".workspace");
            faults.push(format!("{name} is published without {key}"));
        }
    }
    let tests = manifest.split("[dev-dependencies]\n").nth(1);
    let lines = tests.unwrap_or_default().lines();
    for line in lines.take_while(|line| !line.starts_with('[')) {
        let other = line.split(['.', ' ']).next().unwrap_or_default();
        let is_above = floor_of(other) > floor_of(name);
        if is_above && !line.contains("{ path = ") {
            faults.push(format!(
                "{name} needs {other} for its tests, which is above it: name it by its path alone, or neither can be published first"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "[package]\ndescription = \"D\"\nlicense.workspace = true\nrust-version.workspace = true\npublish.workspace = true\n\
                        readme.workspace = true\ndocumentation.workspace = true\nkeywords.workspace = true\n\
                        [dependencies]\nlow.workspace = true\n[dev-dependencies]\nlow.workspace = true\n\
                        high = { path = \"../high\" }\nserde.workspace = true\n";

    fn faults(manifest: &str) -> usize {
        let floors = |name: &str| match name {
            "low" => Some(0),
            "middle" => Some(1),
            "high" => Some(2),
            _ => None,
        };
        let mut faults = Vec::new();
        check("middle", manifest, floors, &mut faults);
        faults.len()
    }

    #[test]
    fn what_cannot_be_published_is_found() {
        assert_eq!(faults(GOOD), 0);
        assert_eq!(faults(&GOOD.replace("description = \"D\"\n", "")), 1);
        assert_eq!(
            faults(&GOOD.replace("{ path = \"../high\" }", "{ workspace = true }")),
            1
        );
        assert_eq!(faults(&GOOD.replace("high = {", "other = {")), 0);
        let private = GOOD.replace("publish.workspace = true", "publish = false");
        assert_eq!(faults(&private.replace("description = \"D\"\n", "")), 0);
    }
}
