//! Cycles of imports: files that need each other can only be read together.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{Visit, visit_item};
use syn::{Attribute, Item, UseTree, Visibility};

type Path = Vec<String>;

/// What one file defines and names.
#[derive(Default)]
struct File {
    defined: BTreeSet<String>,
    /// What each name in scope stands for.
    imported: BTreeMap<String, Path>,
    globs: Vec<Path>,
    /// All named paths, from the root of the crate on. What `mod.rs` only re-exports is not included.
    named: BTreeSet<Path>,
}

struct Reader<'a> {
    module: &'a [String],
    file: File,
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg") && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
    })
}

impl Reader<'_> {
    /// Returns a path from the root of the crate on; `None` if the path is not within it.
    fn absolute(&self, path: &[String]) -> Option<Path> {
        let (first, rest) = path.split_first()?;
        let below = |module: &[String], rest: &[String]| Some([module, rest].concat());
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => below(self.module, rest),
            "super" => {
                let ups = path.iter().take_while(|segment| *segment == "super").count();
                below(&self.module[..self.module.len().checked_sub(ups)?], &path[ups..])
            }
            _ => None,
        }
    }

    fn import(&mut self, tree: &UseTree, path: &mut Path, passed_on: bool) {
        match tree {
            UseTree::Path(step) => {
                path.push(step.ident.to_string());
                self.import(&step.tree, path, passed_on);
                path.pop();
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, path, passed_on)),
            UseTree::Glob(_) => self.file.globs.extend(self.absolute(path)),
            UseTree::Name(name) => self.import_as(&name.ident.to_string(), &name.ident.to_string(), path, passed_on),
            UseTree::Rename(name) => self.import_as(&name.ident.to_string(), &name.rename.to_string(), path, passed_on),
        }
    }

    fn import_as(&mut self, name: &str, alias: &str, path: &Path, passed_on: bool) {
        let (path, alias) = match (name, path.last()) {
            ("self", Some(last)) => (path.clone(), last.clone()),
            _ => ([path.as_slice(), &[name.to_owned()]].concat(), alias.to_owned()),
        };
        // In 2018 paths a child module may be named without `self`.
        let path = self.absolute(&path).unwrap_or_else(|| [self.module, &path].concat());
        if !passed_on {
            self.file.named.insert(path.clone());
        }
        self.file.imported.insert(alias, path);
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let (name, attributes) = match item {
            Item::Const(item) => (Some(&item.ident), &item.attrs),
            Item::Enum(item) => (Some(&item.ident), &item.attrs),
            Item::Fn(item) => (Some(&item.sig.ident), &item.attrs),
            Item::Static(item) => (Some(&item.ident), &item.attrs),
            Item::Struct(item) => (Some(&item.ident), &item.attrs),
            Item::Trait(item) => (Some(&item.ident), &item.attrs),
            Item::Type(item) => (Some(&item.ident), &item.attrs),
            Item::Macro(item) => (item.ident.as_ref(), &item.attrs),
            Item::Impl(item) => (None, &item.attrs),
            Item::Mod(item) => (None, &item.attrs),
            Item::Use(item) => {
                let passed_on = !matches!(item.vis, Visibility::Inherited);
                return self.import(&item.tree, &mut Path::new(), passed_on);
            }
            _ => return,
        };
        if is_test(attributes) {
            return;
        }
        self.file.defined.extend(name.map(ToString::to_string));
        visit_item(self, item);
    }

    /// `pub(super)` needs nothing of the parent.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Path = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.file.named.extend(self.absolute(&segments));
        syn::visit::visit_path(self, path);
    }
}

/// The files of a crate by their modules.
pub struct Crate(BTreeMap<Path, File>);

impl Crate {
    /// Parses files from their paths, relative to the root, and their texts.
    pub fn parse<'a>(files: impl IntoIterator<Item = (&'a std::path::Path, &'a str)>) -> Self {
        let read = |(path, text): (&std::path::Path, &str)| {
            let mut module: Path = path.with_extension("").iter().map(|part| part.to_string_lossy().into()).collect();
            module.pop_if(|last| last == "mod" || last == "lib");
            let mut reader = Reader { module: &module, file: File::default() };
            reader.visit_file(&syn::parse_file(text).unwrap());
            let file = reader.file;
            (module, file)
        };
        Self(files.into_iter().map(read).collect())
    }

    /// Returns the module that defines what a path names, wherever it is re-exported.
    fn defining(&self, path: &[String], depth: usize) -> Option<&Path> {
        let known = (0..=path.len()).rev().find_map(|length| self.0.get_key_value(&path[..length]));
        let (module, file) = known.filter(|_| depth > 0)?;
        let Some(name) = path.get(module.len()) else { return Some(module) };
        if file.defined.contains(name) {
            return Some(module);
        }
        if let Some(target) = file.imported.get(name) {
            return self.defining(&[target, &path[module.len() + 1..]].concat(), depth - 1);
        }
        let through = |glob: &Path| self.defining(&[glob, &path[module.len()..]].concat(), depth - 1);
        file.globs.iter().filter(|glob| *glob != module).find_map(through)
    }

    fn needed_by(&self, module: &Path) -> BTreeSet<&Path> {
        let defining = self.0[module].named.iter().filter_map(|path| self.defining(path, 8));
        defining.filter(|needed| *needed != module).collect()
    }

    /// Returns every file that needs itself through others, with the other files that it needs.
    pub fn circles(&self) -> Vec<String> {
        let direct: BTreeMap<_, _> = self.0.keys().map(|module| (module, self.needed_by(module))).collect();
        let reached = |from: &Path| {
            let (mut reached, mut left) = (BTreeSet::new(), direct[from].clone());
            while let Some(module) = left.pop_first() {
                if reached.insert(module) {
                    left.extend(&direct[module]);
                }
            }
            reached
        };
        let all: BTreeMap<_, _> = self.0.keys().map(|module| (module, reached(module))).collect();
        let circle = |module: &Path| {
            let back: Vec<_> = direct[module].iter().filter(|needed| all[**needed].contains(module)).collect();
            let names: Vec<_> = back.iter().map(|needed| needed.join("::")).collect();
            (!names.is_empty()).then(|| format!("{} needs {}", module.join("::"), names.join(", ")))
        };
        self.0.keys().filter_map(circle).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Crate;

    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        Crate::parse(files.iter().map(|(path, text)| (Path::new(*path), *text))).circles()
    }

    #[test]
    fn two_files_that_name_each_other() {
        let a = ("a.rs", "use crate::b::B; pub struct A(B);");
        assert_eq!(circles(&[a, ("b.rs", "pub struct B; fn f(_: crate::a::A) {}")]), ["a needs b", "b needs a"]);
        assert!(circles(&[a, ("b.rs", "pub struct B;")]).is_empty());
    }

    #[test]
    fn a_name_belongs_to_the_file_that_defines_it() {
        let module = ("m/mod.rs", "mod a; mod b; pub use a::A; pub use b::B;");
        let a = ("m/a.rs", "use super::B; pub struct A(B);");
        assert!(circles(&[module, a, ("m/b.rs", "pub struct B;")]).is_empty());
        let both = circles(&[module, a, ("m/b.rs", "use super::A; pub struct B(A);")]);
        assert_eq!(both, ["m::a needs m::b", "m::b needs m::a"]);
    }

    #[test]
    fn a_module_that_uses_its_child_is_not_used_by_it() {
        let parent = ("m/mod.rs", "mod a; use a::A; pub struct M(A);");
        assert_eq!(circles(&[parent, ("m/a.rs", "pub struct A; fn f(_: super::M) {}")]).len(), 2);
        let with_tests = ("m/a.rs", "pub struct A; #[cfg(test)] mod tests { use crate::m::M; }");
        assert!(circles(&[parent, with_tests]).is_empty());
    }
}
