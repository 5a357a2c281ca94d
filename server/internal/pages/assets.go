package pages

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/ops"
)

//go:embed assets templates
var files embed.FS

// assets are the files of the pages. The name under which a file is served contains a hash of the file, so browsers may
// cache it forever.
type assets struct {
	names map[string]string // by the name of the file: the name under which it is served
	files map[string][]byte // by the name under which it is served
}

var types = map[string]string{
	".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

func readAssets() (assets, error) {
	a := assets{make(map[string]string), make(map[string][]byte)}
	list, err := fs.ReadDir(files, "assets")
	if err != nil {
		return a, err
	}
	for _, f := range list {
		text, err := files.ReadFile("assets/" + f.Name())
		if err != nil {
			return a, err
		}
		sum := sha256.Sum256(text)
		ext := path.Ext(f.Name())
		wire := strings.TrimSuffix(f.Name(), ext) + "-" + hex.EncodeToString(sum[:6]) + ext
		a.names[f.Name()], a.files[wire] = wire, text
	}
	return a, nil
}

func (a *assets) has(name string) bool { return a.files[name] != nil }

func (a *assets) serve(w http.ResponseWriter, r *http.Request, name string) {
	w.Header().Set("Content-Type", types[path.Ext(name)])
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(a.files[name]))
}

// parse reads the templates. For each page it makes a set of the layout, the shared templates, and the page's own file.
func (h *Handler) parse() (err error) {
	if h.assets, err = readAssets(); err != nil {
		return err
	}
	base, err := template.New("").Funcs(functions).ParseFS(files, "templates/layout.html", "templates/shared.html")
	if err != nil {
		return err
	}
	h.sets = make(map[string]*template.Template)
	for _, p := range h.all {
		set, err := base.Clone()
		if err != nil {
			return err
		}
		if h.sets[p.name], err = set.ParseFS(files, "templates/"+p.name+".html"); err != nil {
			return fmt.Errorf("page %s: %w", p.name, err)
		}
	}
	return nil
}

var functions = template.FuncMap{
	"visible":     func(text any) string { return visible(fmt.Sprint(text)) },
	"shell":       ops.Shell,
	"breaks":      func(text any) template.HTML { return breaks(visible(fmt.Sprint(text))) },
	"shortBreaks": func(most int, text any) template.HTML { return breaks(shorten(visible(fmt.Sprint(text)), most)) },
	"short":       func(most int, text any) string { return shorten(visible(fmt.Sprint(text)), most) },
	"ended":       func(most int, text any) string { return ended(shorten(visible(fmt.Sprint(text)), most)) },
	"sentence":    func(most int, text any) string { return asSentence(shorten(visible(fmt.Sprint(text)), most)) },
	"count": func(n any) string {
		switch n := n.(type) {
		case int:
			return count(n)
		case int64:
			return count(n)
		}
		return fmt.Sprint(n)
	},
	"plural": plural,
	"kind":   kindOf,
	"exact": func(d any) string {
		switch d := d.(type) {
		case time.Duration:
			return exact(d)
		case interface{ Duration() time.Duration }:
			return exact(d.Duration())
		}
		return fmt.Sprint(d)
	},
	"percent":  func(f float64) string { return fmt.Sprintf("%d %%", int(f*100)) }, // rounds down: only a completed walk shows 100 %
	"text":     func(v any) string { return fmt.Sprint(v) },
	"states":   stateDiagram,
	"spark":    sparkline,
	"strip":    runStrip,
	"stateTip": stateTip,
	"stateOf":  stateOf,
	"add":      func(a, b int) int { return a + b },
	"outcomes": func() []string {
		return []string{ops.OutcomeDone, ops.OutcomeAsked, ops.OutcomeFailed, ops.OutcomeRefused, ops.OutcomeUnknown}
	},
	"col": column,
}

// Column is the head of a column that a list can be sorted by.
type Column struct {
	Title, Href string
	Here, Down  bool
}

func column(v *View, f *Filter, name, title string) Column {
	c := Column{Title: title, Here: f.Sort == name}
	dir := ""
	if c.Down = c.Here && f.Down; c.Here && !f.Down {
		dir = "down"
	}
	c.Href = v.URL("sort", name, "dir", dir)
	return c
}
