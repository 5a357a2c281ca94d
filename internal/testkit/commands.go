package testkit

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Command is a command on a page.
type Command struct {
	Page  string
	Line  int
	Words []string // as a shell splits them, without assignments, redirections and comments
	Whole bool     // it is shown to be run as it stands; otherwise a text or an output mentions it, perhaps without its arguments
}

// String returns the words of the command, and where it is.
func (c Command) String() string {
	return fmt.Sprintf("%s:%d: %s", c.Page, c.Line, strings.Join(c.Words, " "))
}

const tools = `(?:[A-Z_]+=\S+ )*(?:joblock|make|go|git|curl|redis-cli|docker|helm|kubectl|systemctl|terraform|promtool) `

var (
	span       = regexp.MustCompile("``[^`]+``|`[^`]+`")
	tool       = regexp.MustCompile(`^` + tools)
	indented   = regexp.MustCompile(`^    (` + tools + `.*)`)
	entryPoint = regexp.MustCompile(`^(?:ExecStart=|ENTRYPOINT \[")/usr/bin/(.*?)(?:"\])?$`) // of a unit, of an image
	mentioned  = regexp.MustCompile(`(?:^|"|  )(joblock [^"]*)`)                             // in an output
)

// Commands returns the commands on all pages below root, and in the units of systemd and the Dockerfile. The changelog is
// left out, because it also names what is gone.
func Commands(t *testing.T, root string) (all []Command) {
	t.Helper()
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch ext := filepath.Ext(name); {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".cache" || d.Name() == ".git" || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.Name() == "CHANGELOG.md", ext != ".md" && ext != ".service" && d.Name() != "Dockerfile":
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		all = append(all, commandsOf(filepath.ToSlash(rel), string(text))...)
		return err
	})
	if err != nil || len(all) < 200 {
		t.Fatalf("%d commands on the pages: %v", len(all), err)
	}
	return all
}

func commandsOf(page, text string) (all []Command) {
	add := func(line int, script string, whole bool) {
		for _, words := range simple(script) {
			all = append(all, Command{page, line, words, whole})
		}
	}
	paragraph, begins := "", 0
	end := func() {
		for _, at := range span.FindAllStringIndex(paragraph, -1) {
			if code := strings.ReplaceAll(strings.Trim(paragraph[at[0]:at[1]], "`"), "\n", " "); tool.MatchString(code) {
				add(begins+strings.Count(paragraph[:at[0]], "\n"), code, false)
			}
		}
		paragraph = ""
	}
	language, fenced := "", false
	lines := strings.Split(text, "\n")
	for i, n := 0, 1; i < len(lines); i, n = i+1, i+2 { // n is the number of the line, or of its first part
		line := lines[i]
		for fenced && strings.HasSuffix(line, `\`) && i+1 < len(lines) {
			i++
			line = strings.TrimSuffix(line, `\`) + lines[i]
		}
		command, shown := strings.CutPrefix(line, "$ ")
		switch fence, ok := strings.CutPrefix(strings.TrimSpace(line), "```"); {
		case ok:
			end()
			language, fenced = fence, !fenced
		case entryPoint.MatchString(line):
			add(n, strings.ReplaceAll(entryPoint.FindStringSubmatch(line)[1], `", "`, " "), true)
		case fenced && (language == "sh" || language == "console" && shown):
			add(n, command, true)
		case fenced && language == "console":
			for _, m := range mentioned.FindAllStringSubmatch(strings.TrimSpace(line), -1) {
				add(n, m[1], false)
			}
		case fenced:
		case indented.MatchString(line):
			add(n, line, true)
		case strings.TrimSpace(line) == "":
			end()
		default:
			if paragraph == "" {
				begins = n
			}
			paragraph += line + "\n"
		}
	}
	end()
	return all
}

var assignment = regexp.MustCompile(`^[A-Za-z_]+=`)

// simple splits a script into its simple commands.
func simple(script string) (all [][]string) {
	var words []string
	var word strings.Builder
	var quote byte
	begun, file := false, false // whether there is a word, and whether the next one is the file of a redirection
	endWord := func() {
		if text := word.String(); begun && !file && (len(words) > 0 || !assignment.MatchString(text)) {
			words = append(words, text)
		}
		if begun {
			begun, file = false, false
		}
		word.Reset()
	}
	endCommand := func() {
		endWord()
		if len(words) > 0 {
			all = append(all, words)
		}
		if len(words) > 1 && words[0] == "trap" {
			all = append(all, simple(words[1])...)
		}
		words = nil
	}
	for i := 0; i < len(script); i++ {
		switch c := script[i]; {
		case c == quote:
			quote = 0
		case quote != 0:
			word.WriteByte(c)
		case c == '\'' || c == '"':
			quote, begun = c, true
		case c == '#' && !begun:
			i = len(script) // no script has several lines
		case strings.IndexByte(";|&", c) >= 0:
			endCommand()
		case c == '<' || c == '>':
			endWord()
			file = true
		case c == ' ':
			endWord()
		default:
			word.WriteByte(c)
			begun = true
		}
	}
	endCommand()
	return all
}
