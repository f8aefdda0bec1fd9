//! The committed header is the one that the sources give. `NEAP_WRITE=1 cargo test -p neap-c` writes it.

use std::fs;
use std::path::Path;

#[test]
fn the_header_is_that_of_the_sources() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).expect("cbindgen.toml");
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in [
        "failure", "options", "tensor", "cancel", "session", "version",
    ] {
        builder = builder.with_src(folder.join(format!("src/{file}.rs")));
    }
    let mut made = Vec::new();
    builder.generate().expect("a header").write(&mut made);
    let made = String::from_utf8(made).expect("UTF-8");
    let kept = folder.join("include/neaptide.h");
    if std::env::var_os("NEAP_WRITE").is_some() {
        fs::write(&kept, &made).expect("it can be written");
    }
    let committed = fs::read_to_string(&kept).expect("include/neaptide.h");
    assert!(
        committed == made,
        "include/neaptide.h is not what the sources give: NEAP_WRITE=1 cargo test -p neap-c"
    );
}
