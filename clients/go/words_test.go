package redislock_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The words of the library are those of the table that all client libraries have.
func TestTheWordsAreThoseOfTheTable(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/client-words.md")
	if err != nil {
		t.Fatal(err)
	}
	exported, column, count := exportedWords(t), 0, 0
	for line := range strings.SplitSeq(string(page), "\n") {
		cells := strings.Split(line, " | ")
		switch {
		case strings.HasPrefix(line, "| concept |"):
			column = slices.Index(cells, "Go")
		case strings.HasPrefix(line, "| ") && column > 0:
			parts := strings.Split(cells[column], "`")
			if len(parts) == 1 && parts[0] != "-" {
				t.Errorf("no word: %s", line)
			}
			for at := 1; at < len(parts); at += 2 {
				isLacking := strings.TrimSpace(parts[at-1]) == "lacks"
				if exported[parts[at]] == isLacking {
					t.Errorf("%s: lacking is %v, and the table says %v", parts[at], !isLacking, isLacking)
				}
				count++
			}
		}
	}
	if count < 50 {
		t.Errorf("%d words", count)
	}
}

// exportedWords are the functions, variables, methods and fields that a program may use; those of other packages with the
// name of the package.
func exportedWords(t *testing.T) map[string]bool {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	others, err := filepath.Glob("*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, name := range append(files, others...) {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		prefix := ""
		if folder := filepath.Dir(name); folder != "." {
			prefix = folder + "."
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				found[prefix+receiver(decl)+decl.Name.Name] = true
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					addSpec(found, prefix, spec)
				}
			}
		}
	}
	return found
}

func receiver(decl *ast.FuncDecl) string {
	if decl.Recv == nil {
		return ""
	}
	of := decl.Recv.List[0].Type
	if star, is := of.(*ast.StarExpr); is {
		of = star.X
	}
	if name, is := of.(*ast.Ident); is {
		return name.Name + "."
	}
	return ""
}

func addSpec(found map[string]bool, prefix string, spec ast.Spec) {
	switch spec := spec.(type) {
	case *ast.ValueSpec:
		for _, name := range spec.Names {
			found[prefix+name.Name] = true
		}
	case *ast.TypeSpec:
		if fields, is := spec.Type.(*ast.StructType); is {
			for _, field := range fields.Fields.List {
				for _, name := range field.Names {
					found[prefix+spec.Name.Name+"."+name.Name] = true
				}
			}
		}
	}
}
