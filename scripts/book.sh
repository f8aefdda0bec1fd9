#!/bin/sh
# Makes a book of all pages, to read in a browser and to search. Needs mdbook: cargo install mdbook
#
#   scripts/book.sh [FOLDER]     [default: target/book/html]
#
# Pages at the root are part of it, and mdBook takes one folder: the pages are copied, with links between them as they are.
set -eu
usage="usage: scripts/book.sh [FOLDER]"
case ${1:-} in
-h | --help) echo "$usage" && exit 0 ;;
-*) echo "$usage" >&2 && exit 2 ;;
esac
root=$(cd "$(dirname "$0")/.." && pwd)
book="$root/target/book"
to=${1:-"$book/html"}
mkdir -p "$to"
to=$(cd "$to" && pwd)
rm -rf "$book/src"
mkdir -p "$book/src/docs"
cp "$root"/*.md "$root"/LICENSE-* "$book/src"
cp "$root"/docs/*.md "$root"/docs/*.svg "$book/src/docs"
cp "$root/docs/book.toml" "$book"
# mdBook calls the page of a README index.
sed -i 's#README\.md\([)\#]\)#index.md\1#g' "$book"/src/*.md "$book"/src/docs/*.md
# Names in it are from docs/, and from the folder above.
sed -e 's#](\([^.]\)#](docs/\1#' -e 's#](\.\./#](#' "$root/docs/SUMMARY.md" >"$book/src/SUMMARY.md"
rm "$book/src/docs/SUMMARY.md"
mdbook build --dest-dir "$to" "$book"
pages=$(grep -c '](' "$book/src/SUMMARY.md")
echo "book.sh: $pages pages in $to/index.html"
