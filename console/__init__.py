"""The web console: pages in a browser that show a cluster and change it, as the person who is logged in."""
