// What a page's layout does wrong, as sentences; nothing where all is well.
(() => {
  const wrong = [];
  const told = element => `${element.tagName.toLowerCase()} "${(element.textContent || "").trim().slice(0, 40)}"`;
  const shown = element => element.getClientRects().length > 0;
  const numbers = text => (text.match(/[\d.]+/g) || []).map(Number);

  if (document.documentElement.scrollWidth > innerWidth) {
    wrong.push(`the page is ${document.documentElement.scrollWidth} wide on a screen of ${innerWidth}`);
  }
  for (const element of document.body.querySelectorAll("*:not(svg *)")) {
    if (!shown(element)) continue;
    const box = element.getBoundingClientRect();
    if (box.left < -0.5 || box.right > innerWidth + 0.5) wrong.push(`${told(element)} leaves the screen`);
    if (element.scrollWidth > element.clientWidth + 1 && getComputedStyle(element).display !== "inline") {
      wrong.push(`${told(element)} does not fit into its ${element.clientWidth} pixels`);
    }
  }

  const channel = value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const luminance = colour => {
    const [red, green, blue] = numbers(colour).map(value => channel(value / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const ground = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (numbers(colour).length && numbers(colour)[3] !== 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const check = (element, ink) => {
    const [one, other] = [luminance(ink), luminance(ground(element))].sort((a, b) => b - a);
    const contrast = (one + 0.05) / (other + 0.05);
    if (contrast < 4.5) wrong.push(`${told(element)} has a contrast of ${contrast.toFixed(2)}`);
  };
  for (const element of document.body.querySelectorAll("*:not(svg, svg *)")) {
    const own = [...element.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.trim());
    if (!own || !shown(element)) continue;
    const style = getComputedStyle(element);
    check(element, style.color);
    if (parseFloat(style.fontSize) < 16) wrong.push(`${told(element)} is ${style.fontSize} high`);
  }

  for (const picture of document.querySelectorAll("figure svg")) {
    if (!shown(picture)) continue;
    const canvas = picture.getBoundingClientRect();
    const scale = canvas.width / picture.viewBox.baseVal.width;
    const texts = [...picture.querySelectorAll("text")].filter(text => text.textContent.trim());
    const boxes = texts.map(text => text.getBoundingClientRect());
    texts.forEach((text, place) => {
      const box = boxes[place], style = getComputedStyle(text);
      if (box.left < canvas.left - 1 || box.right > canvas.right + 1 || box.top < canvas.top - 1 || box.bottom > canvas.bottom + 1) {
        wrong.push(`${told(text)} leaves its picture`);
      }
      const size = parseFloat(style.fontSize) * scale;
      if (size < 12.5 || size > 13.5) wrong.push(`${told(text)} is ${size.toFixed(1)} pixels high in a picture`);
      check(text, style.fill);
      for (let next = place + 1; next < texts.length; next++) {
        const other = boxes[next];
        const across = Math.min(box.right, other.right) - Math.max(box.left, other.left);
        const down = Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top);
        if (across > 1 && down > 3) wrong.push(`${told(text)} lies on ${told(texts[next])}`);
      }
    });
    for (const part of picture.querySelectorAll("path, use")) {
      if (part.closest("defs, clipPath") || part.closest("[clip-path]")) continue;
      const box = part.getBoundingClientRect();
      if (box.left < canvas.left - 1 || box.right > canvas.right + 1 || box.top < canvas.top - 1 || box.bottom > canvas.bottom + 1) {
        wrong.push("a line or band leaves its picture");
      }
    }
  }
  return wrong;
})()
